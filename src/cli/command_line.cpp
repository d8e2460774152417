#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <deque>
#include <exception>
#include <filesystem>

#include "cli/commands.h"
#include "core/error.h"

namespace megatrain {
namespace {

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// With dashes, with underscores, and the alias if there is one.
std::string flag_names(const std::string& name) {
  std::string names = "--" + dashed(name);
  if (dashed(name) != name) names += ",--" + name;
  if (const std::string alias = alias_of(name); !alias.empty()) names += ",--" + dashed(alias);
  return names;
}

struct TrainArguments {
  std::string config_path;
  std::deque<std::pair<std::string, std::string>> overrides;  // name, value; stable addresses for CLI11
};

// Every field of TrainConfig is a flag; values stay text until set_field has seen the config file. A boolean
// is
// --name, or --no-name.
void add_fields(CLI::App* sub, TrainArguments& args) {
  TrainConfig defaults;
  for_each_field(defaults, [&](const FieldInfo& info, auto& member) {
    args.overrides.emplace_back(info.name, "");
    std::string help = info.help;
    if (*info.choices) help += fmt::format("{}[{}]", help.empty() ? "" : " ", info.choices);
    std::string& value = args.overrides.back().second;
    if constexpr (std::is_same_v<std::decay_t<decltype(member)>, bool>) {
      if (member) help += fmt::format("{}(on; --no-{}: off)", help.empty() ? "" : " ", dashed(info.name));
      // A flag that takes a value too, as in a config file: --resume, --resume false.
      sub->add_option(flag_names(info.name), value, help)->group(info.section)->expected(0, 1)->type_name("");
      const std::string no = "--no-" + dashed(info.name);
      sub->add_flag(no)->group("");
    } else {
      const std::string usual = fmt::format("{}", member);
      auto* option = sub->add_option(flag_names(info.name), value, help)->group(info.section);
      if (!usual.empty()) option->default_str(usual);
    }
  });
}

TrainConfig config_of(const CLI::App* sub, const TrainArguments& args) {
  TrainConfig config = args.config_path.empty() ? TrainConfig{} : load_config(args.config_path);
  for (const auto& [name, value] : args.overrides) {
    const auto* option = sub->get_option("--" + name);
    const auto* no = sub->get_option_no_throw("--no-" + dashed(name));
    if (no && no->count() > 0) set_field(config, name, "false", no->get_name());
    if (option->count() == 0) continue;
    const bool bare = option->get_expected_min() == 0 && option->results()[0].empty();
    set_field(config, name, bare ? "true" : value, "--" + name);
  }
  return config;
}

void add_train(CLI::App& app, TrainArguments& args, int& result, const std::string& command_line) {
  CLI::App* sub = app.add_subcommand("train", "Train a model: megatrain train CONFIG [--option value ...]");
  sub->add_option("config", args.config_path, "YAML file; every option below is also a key in it")
      ->required();
  add_fields(sub, args);
  sub->callback(
      [&args, &result, sub, command_line] { result = run_train(config_of(sub, args), command_line); });
}

void add_plan(CLI::App& app, TrainArguments& args, PlanOptions& o, int& result) {
  CLI::App* sub = app.add_subcommand(
      "plan", "What train would do: memory of each place, time, speed; here or on another machine");
  sub->add_option("config", args.config_path, "YAML file; may be left out with --init-from DIR");
  sub->add_flag("--json", o.json, "print it as JSON");
  sub->add_option("--timeline", o.timeline, "file for a picture of a step (.html)");
  add_fields(sub, args);
  sub->callback([&, sub] {
    if (args.config_path.empty() && sub->get_option("--init_from")->count() == 0)
      fail("plan: give a config file, or a model directory with --init-from");
    result = run_plan(config_of(sub, args), o);
  });
}

void add_doctor(CLI::App& app, DoctorOptions& o, int& result) {
  CLI::App* sub = app.add_subcommand("doctor", "Measure this machine, say what is wrong, write its profile");
  sub->add_option("-o,--out", o.out, "file of the profile; default: where train and plan look for it");
  sub->add_option("--device", o.device, "auto, cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  sub->add_option("--disk-directory,--disk_directory,--state-dir", o.disk_directory,
                  "directory whose disk is measured, where states would live; none: no disk")
      ->capture_default_str();
  sub->add_option("--threads", o.threads, "threads; 0: all cores")->check(CLI::NonNegativeNumber);
  sub->add_flag("--dry", o.dry, "look at limits only, measure nothing");
  sub->callback([&] { result = run_doctor(o); });
}

void add_machine(CLI::App* sub, MachineOptions& m) {
  sub->add_option(flag_names("memory_limit"), m.memory_limit, "device memory to use, e.g. 512MiB")
      ->default_str("auto");
  sub->add_option("--device", m.device, "auto, cpu or cuda")
      ->default_str("auto")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  sub->add_option("--compute", m.compute, "auto, bf16 or fp32")
      ->default_str("auto")
      ->check(CLI::IsMember({"auto", "bf16", "fp32"}));
  sub->add_option("--threads", m.threads, "threads; 0: all cores");
  sub->add_flag("--allow-nonfinite-weights,--allow_nonfinite_weights", m.allow_nonfinite_weights,
                "read NaN and infinite weights too");
}

void add_generate(CLI::App& app, std::string& directory, GenerateOptions& o, MachineOptions& m, int& result) {
  CLI::App* sub = app.add_subcommand("generate", "Continue a prompt with a saved model");
  sub->add_option("model", directory, "model directory")->required();
  sub->add_option("-p,--prompt", o.prompts, "text to continue; several are continued side by side")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  sub->add_option("--prompts-file,--prompts_file", o.prompt_file, "file with one prompt a line");
  sub->add_flag("--stats", o.stats, "print tokens per second to stderr (always done on a terminal)");
  sub->add_flag("--chat", o.chat,
                "prompts are what a user says (the model's chat template); without one: a conversation");
  sub->add_option("--system", o.system, "system message of a chat");
  sub->add_option("-n,--max-tokens", o.max_tokens, "tokens to add")->capture_default_str();
  sub->add_option("-t,--temperature", o.temperature, "0: the most likely token")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--top-k", o.top_k, "keep the k most likely tokens; 0: all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--top-p", o.top_p, "keep the most likely tokens up to this probability")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  sub->add_option("--min-p", o.min_p,
                  "keep tokens of at least this share of the most likely one's probability")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  sub->add_option("--repetition-penalty,--repetition_penalty", o.repetition_penalty,
                  "above 1: repeats are less likely")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  sub->add_option("--stop", o.stop, "text that ends the answer; may be given several times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  sub->add_option("--seed", o.seed, "same seed, same text")->capture_default_str();
  add_machine(sub, m);
  sub->callback([&] { result = run_generate(directory, o, m); });
}

void add_eval(CLI::App& app, EvalOptions& o, MachineOptions& m, int& result) {
  CLI::App* sub = app.add_subcommand("eval", "Perplexity of a saved model, or the likelihood of choices");
  sub->add_option("model", o.model_directory, "model directory")->required();
  sub->add_option(
         "data", o.data,
         ".bin of tokens, .txt, or .jsonl with {\"text\"} or {\"prompt\", \"choices\", \"answer\"} a line")
      ->required();
  sub->add_option("--sequence-length,--sequence_length", o.sequence_length,
                  "window; 0: the model's positions")
      ->capture_default_str();
  sub->add_option("--batch-size,--batch_size", o.batch_size, "windows at a time")->capture_default_str();
  sub->add_option("--stride", o.stride, "tokens between windows, which then overlap; 0: the window")
      ->capture_default_str();
  sub->add_flag("--per-document,--per_document", o.per_document, "print a line of JSON for each document");
  add_machine(sub, m);
  sub->callback([&] { result = run_eval(o, m); });
}

void add_info(CLI::App& app, std::string& directory, MachineOptions& m, int& result) {
  CLI::App* sub = app.add_subcommand("info", "What a model directory holds and what training it needs");
  sub->add_option("model", directory, "model directory")->required();
  add_machine(sub, m);
  sub->callback([&] { result = run_info(directory, m); });
}

void add_prepare(CLI::App& app, PrepareOptions& o, int& result) {
  CLI::App* sub = app.add_subcommand("prepare", "Turn a text or rows of examples into tokens");
  sub->add_option(
      "input", o.inputs,
      "files or directories: UTF-8 text, or .jsonl, .json or .parquet of texts, conversations "
      "(messages, sharegpt, alpaca), prompts and completions, or preference pairs; .gz and .zst too");
  sub->add_option("--dataset", o.dataset, "instead: a set that DATASET_DIR/dataset_info.json names");
  sub->add_option("--dataset-dir,--dataset_dir", o.dataset_dir, "directory of dataset_info.json")
      ->capture_default_str();
  sub->add_option("-o,--out,--out-dir,--out_dir", o.out_dir, "directory for the tokens and the tokenizer")
      ->required();
  sub->add_option("--tokenizer", o.tokenizer,
                  "byte, char, a tokenizer.json, or a model's directory (whose chat template is used)")
      ->capture_default_str();
  sub->add_option("--val-fraction,--val_fraction", o.val_fraction,
                  "share for validation: the end of a single text, else rows as nanoGPT draws them")
      ->capture_default_str();
  sub->add_option("--seed", o.seed, "draws the validation rows")->capture_default_str();
  sub->add_option("--format", o.format, "auto: .mtbin for fine-tuning sets and large vocabularies, else .bin")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "bin", "mtbin"}));
  sub->add_option("--columns", o.columns,
                  "how the rows name their columns, e.g. prompt=question,completion=answer");
  sub->add_option("--text-column,--text_column", o.text_column, "column of texts")->capture_default_str();
  sub->add_option("--train-on,--train_on", o.train_on, "conversations: what is trained")
      ->capture_default_str()
      ->check(CLI::IsMember({"assistant", "last", "all"}));
  sub->add_flag("--strict", o.strict, "stop at the first row that cannot be used");
  sub->add_flag("--restart", o.restart,
                "start anew even if a killed run of the same command can be gone on with");
  sub->add_option("--journal-seconds,--journal_seconds", o.journal_seconds,
                  "seconds between records of how far it has come; a killed run goes on from the last")
      ->capture_default_str();
  sub->add_option("--threads", o.threads, "threads; 0: all cores")->check(CLI::NonNegativeNumber);
  sub->callback([&] { result = run_prepare(o); });
}

void add_data(CLI::App& app, DataCheckOptions& o, int& result) {
  CLI::App* data = app.add_subcommand("data", "Look at prepared data");
  data->require_subcommand(1);
  CLI::App* sub =
      data->add_subcommand("check", "Count what a run would make of a token file, and show examples");
  sub->add_option("file", o.file,
                  ".bin or .mtbin; or rows or text, which are checked as prepare would take them")
      ->required();
  sub->add_option(
      "--tokenizer", o.tokenizer,
      "directory with the tokenizer; default: beside the file; of rows or text: what to prepare with");
  sub->add_option("--sequence-length,--sequence_length", o.sequence_length, "of the run to come")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  sub->add_option("--examples", o.examples, "to show")->capture_default_str()->check(CLI::NonNegativeNumber);
  sub->callback([&] { result = run_data_check(o); });
}

// CLI11 knows no near misses: name the closest flag ourselves.
std::string with_suggestion(const CLI::App& app, const std::string& message, int argc, char** argv) {
  for (const CLI::App* sub : app.get_subcommands()) {
    std::vector<std::string> names;
    for (const CLI::Option* o : sub->get_options())
      for (const auto& n : o->get_lnames()) names.push_back("--" + n);
    for (int i = 2; i < argc; ++i) {
      const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
      if (word.rfind("--", 0) == 0 && std::find(names.begin(), names.end(), word) == names.end())
        return fmt::format("{}: unknown option '{}'; did you mean '{}'?", sub->get_name(), word,
                           nearest(word, names));
    }
  }
  return message;
}

}  // namespace

int run_command_line(int argc, char** argv) {
  CLI::App app{
      "megatrain: trains language models larger than the GPU's memory, at full precision, on one machine",
      "megatrain"};
  app.set_version_flag("--version", "megatrain " MT_VERSION);
  app.require_subcommand(1);
  std::string command_line;
  for (int i = 0; i < argc; ++i) command_line += (i ? " " : "") + std::string(argv[i]);
  int result = 0;
  TrainArguments train, plan;
  PlanOptions plan_options;
  DoctorOptions doctor;
  std::string model_directory;
  GenerateOptions generate;
  EvalOptions eval;
  PrepareOptions prepare;
  DataCheckOptions data;
  MachineOptions machine;
  add_train(app, train, result, command_line);
  add_plan(app, plan, plan_options, result);
  add_doctor(app, doctor, result);
  add_generate(app, model_directory, generate, machine, result);
  add_eval(app, eval, machine, result);
  add_info(app, model_directory, machine, result);
  add_prepare(app, prepare, result);
  add_data(app, data, result);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help, --version
  } catch (const CLI::Error& e) {
    fmt::print(stderr, "megatrain: {} (see megatrain --help)\n", with_suggestion(app, e.what(), argc, argv));
    return 2;
  } catch (const Error& e) {
    fmt::print(stderr, "megatrain: {}\n", e.what());
    return 2;
  } catch (const std::filesystem::filesystem_error& e) {
    fmt::print(stderr, "megatrain: {}; check the path and its permissions\n", e.what());
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "megatrain: out of host memory; use a smaller batch_size or sequence_length\n");
    return 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "megatrain: internal error: {}; please report it\n", e.what());
    return 1;
  }
  return result;
}

}  // namespace megatrain
