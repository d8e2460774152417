#include "data/chat/template.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "data/chat/builtins.h"
#include "data/chat/syntax.h"
#include "data/chat/text.h"
#include "io/file.h"
#include "io/json.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace chat {
namespace {

constexpr size_t kMaxOutput = size_t{16} << 20;
constexpr int kMaxCalls = 32, kMaxDepth = 1000;

/// One rendering: variables in scopes, output so far.
class Interpreter {
 public:
  explicit Interpreter(const nlohmann::ordered_json& context) {
    scopes_.push_back(global_functions(budget_));
    scopes_.emplace_back();
    for (const auto& [name, value] : context.items()) define(name, Value::from_json(value));
  }

  // A namespace that holds itself would never be freed.
  ~Interpreter() {
    for (const Value& n : namespaces_) n.entries().clear();
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  ChatTemplate::Rendered run(const Nodes& nodes) {
    execute(nodes);
    return {std::move(out_), std::move(generated_)};
  }

 private:
  enum class Flow { normal, broken, continued };

  void define(const std::string& name, Value value) {
    for (auto& [n, v] : scopes_.back())
      if (n == name) {
        v = std::move(value);
        return;
      }
    scopes_.back().emplace_back(name, std::move(value));
  }
  Value lookup(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      for (const auto& [n, v] : *scope)
        if (n == name) return v;
    return {};
  }
  void emit(const std::string& text) {
    if (out_.size() + text.size() > kMaxOutput) throw TemplateError("the output is too long");
    out_ += text;
  }
  struct Depth {
    explicit Depth(int& d) : depth(d) {
      if (++depth > kMaxDepth) {
        --depth;
        throw TemplateError("nested too deeply");
      }
    }
    ~Depth() { --depth; }
    int& depth;
  };
  struct Scope {
    explicit Scope(Interpreter& i) : interpreter(i) { i.scopes_.emplace_back(); }
    ~Scope() { interpreter.scopes_.pop_back(); }
    Interpreter& interpreter;
  };

  Flow execute(const Nodes& nodes) {
    for (const NodePtr& n : nodes) {
      budget_.step();
      try {
        const Flow flow = statement(*n);
        if (flow != Flow::normal) return flow;
      } catch (const TemplateError& e) {
        const std::string what = e.what();
        throw TemplateError(what.rfind("line ", 0) == 0 ? what : fmt::format("line {}: {}", n->line, what));
      }
    }
    return Flow::normal;
  }

  Flow statement(const Node& n) {
    switch (n.kind) {
      case Kind::text:
        emit(n.name);
        break;
      case Kind::output:
        emit(evaluate(*n.children[0]).str());
        break;
      case Kind::if_:
        return execute(evaluate(*n.children[0]).truthy() ? n.body : n.otherwise);
      case Kind::for_:
        return loop(n);
      case Kind::set:
        set(n);
        break;
      case Kind::set_block: {
        Value text(captured(n.body));
        define(n.names.at(0), n.children[0] ? filtered(*n.children[0], text) : text);
        break;
      }
      case Kind::macro:
        define(n.name, Value(macro(n)));
        break;
      case Kind::call_block:
        call_block(n);
        break;
      case Kind::filter_block:
        emit(filtered(*n.children[0], Value(captured(n.body))).str());
        break;
      case Kind::generation: {
        const size_t begin = out_.size();
        const Flow flow = execute(n.body);
        generated_.emplace_back(begin, out_.size());
        return flow;
      }
      case Kind::break_:
        return Flow::broken;
      case Kind::continue_:
        return Flow::continued;
      default:
        throw std::logic_error("not a statement");
    }
    return Flow::normal;
  }

  std::string captured(const Nodes& body) {
    std::string outer = std::move(out_);
    out_.clear();
    const Scope scope(*this);
    try {
      execute(body);
    } catch (...) {
      out_ = std::move(outer);
      throw;
    }
    std::string inner = std::move(out_);
    out_ = std::move(outer);
    budget_.make(inner.size());
    return inner;
  }

  void bind(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) return define(names[0], value);
    const List parts = iterate(value, budget_);
    if (parts.size() != names.size())
      throw TemplateError(fmt::format("{} values for {} names", parts.size(), names.size()));
    for (size_t i = 0; i < names.size(); ++i) define(names[i], parts[i]);
  }

  void set(const Node& n) {
    const Value value = evaluate(*n.children[0]);
    if (n.name.empty()) return bind(n.names, value);
    const Value object = lookup(n.names.at(0));
    if (!object.is(Value::dict)) throw TemplateError(fmt::format("'{}' is not a namespace", n.names[0]));
    object.set(n.name, value);
    namespaces_.push_back(object);
  }

  Flow loop(const Node& n) {
    List items = iterate(evaluate(*n.children[0]), budget_);
    if (n.children[1]) {
      List kept;
      for (Value& item : items) {
        const Scope scope(*this);
        bind(n.names, item);
        if (evaluate(*n.children[1]).truthy()) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty()) {
      const Scope scope(*this);
      return execute(n.otherwise);
    }
    for (size_t i = 0; i < items.size(); ++i) {
      budget_.step();
      const Scope scope(*this);
      define("loop", loop_variables(items, i));
      bind(n.names, items[i]);
      if (execute(n.body) == Flow::broken) break;
    }
    return Flow::normal;
  }

  static Value loop_variables(const List& items, size_t i) {
    const auto at = static_cast<int64_t>(i), n = static_cast<int64_t>(items.size());
    Dict d = {{"index", Value(at + 1)},
              {"index0", Value(at)},
              {"first", Value(i == 0)},
              {"last", Value(at + 1 == n)},
              {"length", Value(n)},
              {"revindex", Value(n - at)},
              {"revindex0", Value(n - at - 1)},
              {"previtem", i > 0 ? items[i - 1] : Value()},
              {"nextitem", i + 1 < items.size() ? items[i + 1] : Value()},
              {"cycle", Value(Function([at](const Arguments& a) {
                 if (a.positional.empty()) throw TemplateError("cycle: names no values");
                 return a.positional[static_cast<size_t>(at) % a.positional.size()];
               }))}};
    return Value(std::move(d));
  }

  // The function refers to the tree and to this interpreter, which both outlive it.
  Function macro(const Node& n) {
    return [this, &n](const Arguments& a) {
      if (++calls_ > kMaxCalls) throw TemplateError("macros call each other too deeply");
      const Scope scope(*this);
      for (size_t i = 0; i < n.names.size(); ++i) {
        Value v = a.get(i, n.names[i]);
        if (v.is(Value::undefined) && n.children[i]) v = evaluate(*n.children[i]);
        define(n.names[i], std::move(v));
      }
      if (const Value caller = a.get(99, "caller"); caller.is(Value::function)) define("caller", caller);
      std::string text = captured(n.body);
      --calls_;
      return Value(std::move(text));
    };
  }

  void call_block(const Node& n) {
    const Node& call = *n.children.back();
    Arguments args = arguments(call);
    args.named.emplace_back("caller", Value(macro(n)));
    emit(invoke(*call.children[0], args).str());
  }

  // ---- expressions

  Value evaluate(const Node& n) {
    const Depth depth(depth_);
    budget_.step();
    switch (n.kind) {
      case Kind::literal:
        return n.value;
      case Kind::name:
        return lookup(n.name);
      case Kind::list: {
        List items;
        for (const NodePtr& c : n.children) items.push_back(evaluate(*c));
        return Value(std::move(items));
      }
      case Kind::dict: {
        Value d{Dict{}};
        for (size_t i = 0; i + 1 < n.children.size(); i += 2)
          d.set(evaluate(*n.children[i]).str(), evaluate(*n.children[i + 1]));
        return d;
      }
      case Kind::attribute:
        return attribute(evaluate(*n.children[0]), n.name);
      case Kind::item:
        return item(evaluate(*n.children[0]), evaluate(*n.children[1]));
      case Kind::slice:
        return slice(n);
      case Kind::call:
        return invoke(*n.children[0], arguments(n));
      case Kind::filter:
        return filtered(n, Value());
      case Kind::test:
        return Value(apply_test(n.name, evaluate(*n.children[0]), arguments(n), budget_));
      default:
        return operation(n);
    }
  }

  Value operation(const Node& n) {
    switch (n.kind) {
      case Kind::unary: {
        const Value v = evaluate(*n.children[0]);
        if (v.is(Value::real)) return Value(n.name == "-" ? -v.as_real() : v.as_real());
        return arithmetic(n.name, Value(int64_t{0}), v);
      }
      case Kind::binary:
        return arithmetic(n.name, evaluate(*n.children[0]), evaluate(*n.children[1]));
      case Kind::compare:
        return comparison(n);
      case Kind::and_: {
        const Value left = evaluate(*n.children[0]);
        return left.truthy() ? evaluate(*n.children[1]) : left;
      }
      case Kind::or_: {
        const Value left = evaluate(*n.children[0]);
        return left.truthy() ? left : evaluate(*n.children[1]);
      }
      case Kind::not_:
        return Value(!evaluate(*n.children[0]).truthy());
      case Kind::conditional:
        if (evaluate(*n.children[1]).truthy()) return evaluate(*n.children[0]);
        return n.children[2] ? evaluate(*n.children[2]) : Value();
      default:
        throw std::logic_error("not an expression");
    }
  }

  Arguments arguments(const Node& n) {
    Arguments a;
    for (size_t i = 1; i < n.children.size(); ++i) {
      if (n.names[i].empty())
        a.positional.push_back(evaluate(*n.children[i]));
      else
        a.named.emplace_back(n.names[i], evaluate(*n.children[i]));
    }
    return a;
  }

  Value invoke(const Node& callee, const Arguments& a) {
    const Value f = evaluate(callee);
    if (!f.is(Value::function))
      throw TemplateError(
          fmt::format("'{}' is {}, not a function", callee.name.substr(0, 40), f.type_name()));
    return f.call()(a);
  }

  Value filtered(const Node& n, const Value& body) {
    const Value subject = n.children[0]
                              ? (n.children[0]->kind == Kind::filter ? filtered(*n.children[0], body)
                                                                     : evaluate(*n.children[0]))
                              : body;
    return apply_filter(n.name, subject, arguments(n), budget_);
  }

  Value attribute(const Value& object, const std::string& name) {
    if (object.is(Value::undefined))
      throw TemplateError(fmt::format("'{}' is asked of something undefined", name.substr(0, 40)));
    const Value method = method_of(object, name, budget_);
    return method.is(Value::undefined) ? object.find(name) : method;
  }

  Value item(const Value& object, const Value& key) {
    if (object.is(Value::undefined))
      throw TemplateError(fmt::format("[{}] is asked of something undefined", key.repr().substr(0, 40)));
    if (object.is(Value::dict)) {
      const Value found = object.find(key.str());
      return found.is(Value::undefined) && key.is(Value::string) ? method_of(object, key.text(), budget_)
                                                                 : found;
    }
    if (!key.is(Value::integer))
      return key.is(Value::string) ? method_of(object, key.text(), budget_) : Value();
    if (!object.is(Value::list) && !object.is(Value::string)) return {};
    const List items = iterate(object, budget_);
    const auto n = static_cast<int64_t>(items.size());
    const int64_t i = key.as_int() < 0 ? key.as_int() + n : key.as_int();
    return i >= 0 && i < n ? items[static_cast<size_t>(i)] : Value();
  }

  Value slice(const Node& n) {
    const Value object = evaluate(*n.children[0]);
    if (!object.is(Value::list) && !object.is(Value::string))
      throw TemplateError(fmt::format("{} cannot be sliced", object.type_name()));
    auto bound = [&](size_t child, int64_t absent) {
      if (!n.children[child]) return absent;
      const Value v = evaluate(*n.children[child]);
      return v.is(Value::none) ? absent : v.as_int();
    };
    const List items = iterate(object, budget_);
    const auto size = static_cast<int64_t>(items.size());
    const int64_t step = std::clamp<int64_t>(bound(3, 1), -size - 1, size + 1);
    if (step == 0) throw TemplateError("a slice's step is zero");
    // Python's PySlice_AdjustIndices
    auto clip = [&](int64_t i) {
      if (i < 0) i = i < -size ? -1 : i + size;
      return std::clamp<int64_t>(i, step < 0 ? -1 : 0, step < 0 ? size - 1 : size);
    };
    const int64_t first = n.children[1] ? clip(bound(1, step < 0 ? size : 0)) : (step < 0 ? size - 1 : 0);
    const int64_t end = n.children[2] ? clip(bound(2, step < 0 ? -size - 1 : size)) : (step < 0 ? -1 : size);
    List out;
    for (int64_t i = first; step > 0 ? i < end : i > end; i += step)
      out.push_back(items[static_cast<size_t>(i)]);
    if (object.is(Value::list)) return Value(std::move(out));
    std::string text;
    for (const Value& c : out) text += c.text();
    return Value(std::move(text));
  }

  Value comparison(const Node& n) {
    Value left = evaluate(*n.children[0]);
    for (size_t i = 0; i < n.names.size(); ++i) {
      Value right = evaluate(*n.children[i + 1]);
      if (!compare(n.names[i], left, right)) return Value(false);
      left = std::move(right);
    }
    return Value(true);
  }

  static bool compare(const std::string& op, const Value& x, const Value& y) {
    if (op == "==") return x == y;
    if (op == "!=") return !(x == y);
    if (op == "in") return contains(y, x);
    if (op == "not in") return !contains(y, x);
    if (op == "<") return x.less(y);
    if (op == ">") return y.less(x);
    if (op == "<=") return x.less(y) || x == y;
    return y.less(x) || x == y;
  }

  Value arithmetic(const std::string& op, const Value& x, const Value& y) {
    if (op == "~") return concatenated(x.str(), y.str());
    if (op == "+" && x.is(Value::string) && y.is(Value::string)) return concatenated(x.text(), y.text());
    if (op == "+" && x.is(Value::list) && y.is(Value::list)) {
      List out = iterate(x, budget_);
      const List more = iterate(y, budget_);
      out.insert(out.end(), more.begin(), more.end());
      return Value(std::move(out));
    }
    if (op == "%" && x.is(Value::string)) {
      std::string text = percent_format(x.text(), y);
      budget_.make(text.size());
      return Value(std::move(text));
    }
    if (op == "*" && x.is(Value::string) && y.is(Value::integer)) return repeated(x.text(), y.as_int());
    if (!x.is_number() || !y.is_number())
      throw TemplateError(fmt::format("'{}' between {} and {}", op, x.type_name(), y.type_name()));
    if (op == "/" || x.is(Value::real) || y.is(Value::real))
      return real_arithmetic(op, x.as_real(), y.as_real());
    return whole_arithmetic(op, x.as_int(), y.as_int());
  }

  Value concatenated(const std::string& x, const std::string& y) {
    budget_.make(x.size() + y.size());
    return Value(x + y);
  }
  Value repeated(const std::string& text, int64_t times) {
    std::string out;
    for (int64_t i = 0; i < times; ++i) budget_.make(text.size() + 1), out += text;
    return Value(std::move(out));
  }

  static Value real_arithmetic(const std::string& op, double x, double y) {
    if (op == "+") return Value(x + y);
    if (op == "-") return Value(x - y);
    if (op == "*") return Value(x * y);
    if (op == "**") return Value(std::pow(x, y));
    if (y == 0) throw TemplateError("division by zero");
    if (op == "/") return Value(x / y);
    const double floor = std::floor(x / y);
    return Value(op == "//" ? floor : x - floor * y);
  }

  static Value whole_arithmetic(const std::string& op, int64_t x, int64_t y) {
    int64_t r = 0;
    bool overflow = false;
    if (op == "+") {
      overflow = __builtin_add_overflow(x, y, &r);
    } else if (op == "-") {
      overflow = __builtin_sub_overflow(x, y, &r);
    } else if (op == "*") {
      overflow = __builtin_mul_overflow(x, y, &r);
    } else if (op == "**") {
      if (y < 0) return Value(std::pow(static_cast<double>(x), static_cast<double>(y)));
      r = 1;
      for (int64_t i = 0; i < y && !overflow; ++i) {
        overflow = i > 64 && x != 0 && x != 1 && x != -1;
        overflow = overflow || __builtin_mul_overflow(r, x, &r);
        if (i > 128) break;  // powers of 0, 1 and -1
      }
    } else {
      if (y == 0) throw TemplateError("division by zero");
      if (y == -1) return op == "//" ? whole_arithmetic("-", 0, x) : Value(int64_t{0});
      r = op == "//" ? x / y - (x % y != 0 && (x < 0) != (y < 0)) : (x % y + y) % y;
    }
    if (overflow) throw TemplateError("a number is too large");
    return Value(r);
  }

  Budget budget_;
  std::vector<Dict> scopes_;
  std::string out_;
  std::vector<std::pair<size_t, size_t>> generated_;
  List namespaces_;  // that were assigned to
  int calls_ = 0, depth_ = 0;
};

}  // namespace
}  // namespace chat

struct ChatTemplate::Impl {
  std::string where;
  chat::Nodes nodes;
};

ChatTemplate::ChatTemplate(const std::string& source, std::string where) : impl_(std::make_unique<Impl>()) {
  impl_->where = std::move(where);
  try {
    impl_->nodes = chat::parse_template(source);
  } catch (const chat::TemplateError& e) {
    fail(fmt::format("{}: chat template: {}", impl_->where, e.what()));
  }
}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

ChatTemplate::Rendered ChatTemplate::render(const nlohmann::ordered_json& context) const {
  try {
    return chat::Interpreter(context).run(impl_->nodes);
  } catch (const chat::TemplateError& e) {
    fail(fmt::format("{}: chat template: {}", impl_->where, e.what()));
  }
}

std::optional<ChatFormat> ChatFormat::load(const std::string& directory) {
  const std::string config_path = directory + "/tokenizer_config.json",
                    file = directory + "/chat_template.jinja";
  nlohmann::json config;
  if (fs::exists(config_path)) config = parse_json(read_text_file(config_path), config_path);
  std::string source, where = config_path;
  if (fs::exists(file)) {
    source = read_text_file(file), where = file;
  } else if (config.is_object() && config.contains("chat_template")) {
    const nlohmann::json& t = config["chat_template"];
    if (t.is_string()) source = t.get<std::string>();
    if (t.is_array())  // several, by name
      for (const auto& entry : t)
        if (entry.is_object() && entry.value("name", "") == "default") source = entry.value("template", "");
  }
  if (source.empty()) return std::nullopt;
  nlohmann::ordered_json context;
  for (const char* name : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    if (!config.is_object() || !config.contains(name)) continue;
    const nlohmann::json& token = config[name];
    if (token.is_string()) context[name] = token.get<std::string>();
    if (token.is_object()) context[name] = token.value("content", "");
  }
  return ChatFormat(ChatTemplate(source, where), std::move(context));
}

ChatTemplate::Rendered ChatFormat::render(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                                          const nlohmann::ordered_json& tools) const {
  nlohmann::ordered_json context = context_;
  context["messages"] = messages, context["add_generation_prompt"] = add_generation_prompt;
  context["tools"] = tools, context["documents"] = nullptr;
  return template_.render(context);
}

}  // namespace megatrain
