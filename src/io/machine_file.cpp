#include "io/machine_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <cmath>
#include <cstdlib>
#include <type_traits>

#include "core/error.h"
#include "io/file.h"

namespace megatrain {
namespace {

std::string scaled(double value, double scale) {
  return fmt::format("{:.4g}", value / scale);
}

template <class T>
T read_as(const YAML::Node& node, const std::string& where) {
  try {
    return node.as<T>();
  } catch (const YAML::Exception&) {
    fail(where + ": a number (or a list of them) was expected");
  }
}

void read_number(MachineProfile& p, const std::string& key, const YAML::Node& node, const std::string& where,
                 bool& known) {
  for_each_number(p, [&](const std::string& name, auto& member, double scale, const char*) {
    if (name != key) return;
    known = true;
    const double value = read_as<double>(node, where);
    if (!std::isfinite(value) || value < 0 ||
        (value == 0 && name.find("seconds") == std::string::npos && name != "device_memory" &&
         name != "disk_free"))
      fail(fmt::format("{}: {} must be positive", where, name));
    member = static_cast<std::decay_t<decltype(member)>>(value * scale);
  });
}

void read_entry(MachineProfile& p, const std::string& key, const YAML::Node& node, const std::string& where) {
  bool known = false;
  for (auto& [name, text] : {std::pair{"name", &p.name},
                             {"device", &p.device},
                             {"device_name", &p.device_name},
                             {"source", &p.source}})
    if (key == name) known = true, *text = node.as<std::string>();
  read_number(p, key, node, where, known);
  for_each_table(p, [&](const std::string& name, auto& table) {
    if (name == key) known = true, table = read_as<std::vector<double>>(node, where);
  });
  if (key == "op_share") known = true, p.op_share = read_as<std::map<std::string, double>>(node, where);
  if (!known) fail(fmt::format("{}: '{}' is nothing that a machine profile has", where, key));
}

void check_tables(const MachineProfile& p, const std::string& path) {
  const size_t n = p.gemm_axis.size();
  for (const auto* table : {&p.gemm_share, &p.gradient_share})
    if (!table->empty() && table->size() != n * n * n)
      fail(fmt::format("{}: gemm_share and gradient_share need {} values, one for each m, n, k", path,
                       n * n * n));
  for (const auto* table : {&p.attention_share, &p.attention_backward_share})
    if (table->size() != 2 * p.attention_axis.size())
      fail(fmt::format("{}: the attention tables need {} values: widths 64 and 128 for each length", path,
                       2 * p.attention_axis.size()));
  for_each_table(p, [&](const std::string& name, const auto& table) {
    for (const double v : table)
      if (!(v > 0)) fail(fmt::format("{}: {}: values must be positive", path, name));
  });
}

}  // namespace

std::string machine_yaml(const MachineProfile& p) {
  std::string out = fmt::format("name: {}\ndevice: {}\ndevice_name: {}\nsource: {}\n", p.name, p.device,
                                p.device_name, p.source);
  for_each_number(p, [&](const std::string& name, const auto& member, double scale, const char* unit) {
    out += fmt::format("{:<14} {}{}{}\n", name + ":", scaled(static_cast<double>(member), scale),
                       *unit ? "  # " : "", unit);
  });
  out +=
      "# Shares of gemm, by m, n, k on the axis (m slowest); of attention, by length, for widths 64 and "
      "128.\n";
  for_each_table(p, [&](const std::string& name, const auto& table) {
    std::string row;
    for (const double v : table) row += (row.empty() ? "" : ", ") + fmt::format("{:.3g}", v);
    out += name + ": [" + row + "]\n";
  });
  out += "op_share:  # of device_copy\n";
  for (const auto& [name, share] : p.op_share) out += fmt::format("  {}: {:.3g}\n", name, share);
  return out;
}

MachineProfile load_machine(const std::string& path) {
  YAML::Node root;
  try {
    root = YAML::Load(read_text_file(path));
  } catch (const YAML::Exception& e) {
    fail(fmt::format("{}:{}: not valid YAML: {}", path, e.mark.line + 1, e.msg));
  }
  if (!root.IsMap()) fail(path + ": a map was expected, as 'megatrain doctor' writes it");
  const auto text = [&](const char* key, const std::string& usual) {
    return root[key] && root[key].IsScalar() ? root[key].as<std::string>() : usual;
  };
  const std::string device = text("device", "cpu");
  if (device != "cpu" && device != "cuda")
    fail(fmt::format("{}: device: '{}' is neither cpu nor cuda", path, device));
  MachineProfile p =
      built_in_profile(device, text("device_name", ""), root["cores"] ? root["cores"].as<int64_t>(1) : 1);
  for (const auto& entry : root)
    read_entry(p, entry.first.as<std::string>(), entry.second,
               fmt::format("{}:{}", path, entry.first.Mark().line + 1));
  check_tables(p, path);
  return p;
}

std::string machine_path() {
  if (const char* set = std::getenv("MEGATRAIN_MACHINE")) return set;
  const char* config = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  if (config) return std::string(config) + "/megatrain/machine.yaml";
  return home ? std::string(home) + "/.config/megatrain/machine.yaml" : "";
}

}  // namespace megatrain
