#include "data/chat/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace megatrain::chat {
namespace {

constexpr int kMaxDepth = 64;

void check_depth(int depth) {
  if (depth > kMaxDepth) throw TemplateError("values are nested too deeply");
}

std::string real_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  std::string s = fmt::format("{}", d);
  if (s.find_first_of(".e") == std::string::npos) s += ".0";
  return s;
}

std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (char c : text) {
    if (c == '\\' || c == quote)
      out += {'\\', c};
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (static_cast<unsigned char>(c) < 32 || c == 127)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out + quote;
}

std::string json_text(const std::string& s) {
  return nlohmann::json(s).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Value Arguments::get(size_t place, const std::string& name) const {
  for (const auto& [n, v] : named)
    if (n == name) return v;
  return place < positional.size() ? positional[place] : Value();
}

Value Value::null() {
  Value v;
  v.type_ = none;
  return v;
}

Value Value::from_json(const nlohmann::ordered_json& j) {
  switch (j.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return Value(j.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
    case nlohmann::ordered_json::value_t::number_unsigned:
      return Value(j.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return Value(j.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return Value(j.get<std::string>());
    case nlohmann::ordered_json::value_t::array: {
      List items;
      for (const auto& item : j) items.push_back(from_json(item));
      return Value(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict entries;
      for (const auto& [key, item] : j.items()) entries.emplace_back(key, from_json(item));
      return Value(std::move(entries));
    }
    default:
      return null();
  }
}

bool Value::truthy() const {
  switch (type_) {
    case undefined:
    case none:
      return false;
    case boolean:
    case integer:
      return int_ != 0;
    case real:
      return real_ != 0;
    case string:
      return !text_.empty();
    case list:
      return !list_->empty();
    case dict:
      return !dict_->empty();
    default:
      return true;
  }
}

int64_t Value::as_int() const {
  if (type_ != boolean && type_ != integer)
    throw TemplateError(fmt::format("a whole number was expected, not {}", type_name()));
  return int_;
}

double Value::as_real() const {
  if (type_ == real) return real_;
  if (type_ != boolean && type_ != integer)
    throw TemplateError(fmt::format("a number was expected, not {}", type_name()));
  return static_cast<double>(int_);
}

Value Value::find(const std::string& key) const {
  if (type_ == dict)
    for (const auto& [k, v] : *dict_)
      if (k == key) return v;
  return {};
}

void Value::set(const std::string& key, Value value) const {
  for (auto& [k, v] : *dict_)
    if (k == key) {
      v = std::move(value);
      return;
    }
  dict_->emplace_back(key, std::move(value));
}

bool Value::operator==(const Value& o) const {
  if (is_number() && o.is_number()) {
    if (type_ != real && o.type_ != real) return int_ == o.int_;
    return as_real() == o.as_real();
  }
  if (type_ != o.type_) return false;
  switch (type_) {
    case string:
      return text_ == o.text_;
    case list:
      return *list_ == *o.list_;
    case dict:
      return dict_->size() == o.dict_->size() && std::all_of(dict_->begin(), dict_->end(), [&](auto& e) {
               const Value other = o.find(e.first);
               return !other.is(undefined) && other == e.second;
             });
    case function:
      return function_ == o.function_;
    default:
      return true;
  }
}

bool Value::less(const Value& o) const {
  if (is_number() && o.is_number()) {
    if (type_ != real && o.type_ != real) return int_ < o.int_;
    return as_real() < o.as_real();
  }
  if (type_ == string && o.type_ == string) return text_ < o.text_;
  if (type_ == list && o.type_ == list) {
    for (size_t i = 0; i < std::min(list_->size(), o.list_->size()); ++i)
      if (!((*list_)[i] == (*o.list_)[i])) return (*list_)[i].less((*o.list_)[i]);
    return list_->size() < o.list_->size();
  }
  throw TemplateError(fmt::format("{} and {} cannot be compared", type_name(), o.type_name()));
}

std::string Value::str() const {
  if (type_ == undefined) return "";
  return type_ == string ? text_ : repr();
}

std::string Value::repr(int depth) const {
  check_depth(depth);
  switch (type_) {
    case undefined:
      return "Undefined";
    case none:
      return "None";
    case boolean:
      return int_ ? "True" : "False";
    case integer:
      return std::to_string(int_);
    case real:
      return real_text(real_);
    case string:
      return quoted(text_);
    case list: {
      std::string out = "[";
      for (const Value& v : *list_) out += (out.size() > 1 ? ", " : "") + v.repr(depth + 1);
      return out + "]";
    }
    case dict: {
      std::string out = "{";
      for (const auto& [k, v] : *dict_)
        out += (out.size() > 1 ? ", " : "") + quoted(k) + ": " + v.repr(depth + 1);
      return out + "}";
    }
    default:
      return "<function>";
  }
}

std::string Value::json(int indent, int depth) const {
  check_depth(depth);
  const std::string inner =
                        indent < 0 ? "" : "\n" + std::string(static_cast<size_t>(indent * (depth + 1)), ' '),
                    outer = indent < 0 ? "" : "\n" + std::string(static_cast<size_t>(indent * depth), ' '),
                    comma = indent < 0 ? ", " : ",";
  switch (type_) {
    case none:
      return "null";
    case boolean:
      return int_ ? "true" : "false";
    case string:
      return json_text(text_);
    case list: {
      std::string out;
      for (const Value& v : *list_) out += (out.empty() ? "" : comma) + inner + v.json(indent, depth + 1);
      return out.empty() ? "[]" : "[" + out + outer + "]";
    }
    case dict: {
      std::string out;
      for (const auto& [k, v] : *dict_)
        out += (out.empty() ? "" : comma) + inner + json_text(k) + ": " + v.json(indent, depth + 1);
      return out.empty() ? "{}" : "{" + out + outer + "}";
    }
    case undefined:
    case function:
      throw TemplateError(fmt::format("{} cannot be written as JSON", type_name()));
    default:
      return repr();
  }
}

const char* Value::type_name() const {
  static const char* names[] = {"undefined", "none",   "a boolean", "a whole number", "a number",
                                "a text",    "a list", "a mapping", "a function"};
  return names[type_];
}

}  // namespace megatrain::chat
