#pragma once
// defines: Value, TemplateError — what a chat template computes with: Python's values as far as Jinja shows
// them.

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace megatrain::chat {

/// A fault of the template or of what it was given; the message has no location yet.
class TemplateError : public Error {
 public:
  using Error::Error;
};

class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  // in order of insertion
struct Arguments {
  List positional;
  Dict named;
  /// By name, or by place, or undefined.
  Value get(size_t place, const std::string& name) const;
};
using Function = std::function<Value(const Arguments&)>;

/// undefined and none differ, as in Jinja. Lists, dicts and functions are shared, strings are copied.
class Value {
 public:
  enum Type { undefined, none, boolean, integer, real, string, list, dict, function };
  Value() = default;
  static Value null();
  Value(bool b) : type_(boolean), int_(b) {}
  Value(int64_t i) : type_(integer), int_(i) {}
  Value(double d) : type_(real), real_(d) {}
  Value(std::string s) : type_(string), text_(std::move(s)) {}
  Value(const char* s) : Value(std::string(s)) {}
  Value(List items) : type_(list), list_(std::make_shared<List>(std::move(items))) {}
  Value(Dict entries) : type_(dict), dict_(std::make_shared<Dict>(std::move(entries))) {}
  Value(Function f) : type_(function), function_(std::make_shared<Function>(std::move(f))) {}
  static Value from_json(const nlohmann::ordered_json& json);

  Type type() const { return type_; }
  bool is(Type t) const { return type_ == t; }
  bool is_number() const { return type_ == boolean || type_ == integer || type_ == real; }
  bool truthy() const;
  int64_t as_int() const;  ///< of a boolean or integer; throws TemplateError otherwise
  double as_real() const;
  const std::string& text() const { return text_; }  ///< of a string
  const List& items() const { return *list_; }
  Dict& entries() const { return *dict_; }
  const Function& call() const { return *function_; }
  /// Entry of a dict, or undefined.
  Value find(const std::string& key) const;
  void set(const std::string& key, Value value) const;  ///< namespaces only

  bool operator==(const Value& other) const;
  /// Python's <; throws TemplateError for types that do not compare.
  bool less(const Value& other) const;
  /// Python's str(); undefined is empty.
  std::string str() const;
  std::string repr(int depth = 0) const;
  /// json.dumps(ensure_ascii=False); `indent` < 0: on one line.
  std::string json(int indent = -1, int depth = 0) const;
  const char* type_name() const;

 private:
  Type type_ = undefined;
  int64_t int_ = 0;
  double real_ = 0;
  std::string text_;
  std::shared_ptr<List> list_;
  std::shared_ptr<Dict> dict_;
  std::shared_ptr<Function> function_;
};

}  // namespace megatrain::chat
