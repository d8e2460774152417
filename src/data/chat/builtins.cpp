#include "data/chat/builtins.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>

#include "data/chat/text.h"

namespace megatrain::chat {
namespace {

using Filter = Value (*)(const Value&, const Arguments&, Budget&);
using Method = Value (*)(const Value&, const Arguments&, Budget&);

std::string text_argument(const Arguments& a, size_t place, const std::string& name,
                          const std::string& absent) {
  const Value v = a.get(place, name);
  if (v.is(Value::undefined) || v.is(Value::none)) return absent;
  if (!v.is(Value::string)) throw TemplateError(fmt::format("{}: a text was expected", name));
  return v.text();
}

int64_t int_argument(const Arguments& a, size_t place, const std::string& name, int64_t absent) {
  const Value v = a.get(place, name);
  return v.is(Value::undefined) || v.is(Value::none) ? absent : v.as_int();
}

Value texts(const std::vector<std::string>& parts, Budget& b) {
  List out;
  for (const auto& p : parts) b.make(p.size() + 32), out.emplace_back(p);
  return Value(std::move(out));
}

int64_t length_of(const Value& v) {
  switch (v.type()) {
    case Value::string:
      return static_cast<int64_t>(characters(v.text()).size());
    case Value::list:
      return static_cast<int64_t>(v.items().size());
    case Value::dict:
      return static_cast<int64_t>(v.entries().size());
    case Value::undefined:
      return 0;
    default:
      throw TemplateError(fmt::format("{} has no length", v.type_name()));
  }
}

Value pairs(const Value& v, Budget& b) {
  if (v.is(Value::undefined)) return Value(List{});
  if (!v.is(Value::dict))
    throw TemplateError(fmt::format("items: a mapping was expected, not {}", v.type_name()));
  List out;
  for (const auto& [k, x] : v.entries()) b.make(64), out.emplace_back(List{Value(k), x});
  return Value(std::move(out));
}

Value joined(const Value& v, const std::string& separator, const std::string& attribute, Budget& b) {
  std::string out;
  bool first = true;
  for (const Value& item : iterate(v, b)) {
    if (!first) out += separator;
    first = false;
    out += (attribute.empty() ? item : attribute_path(item, attribute)).str();
    if (out.size() > (size_t{64} << 20)) throw TemplateError("makes too much text");
  }
  b.make(out.size());
  return Value(out);
}

// map(attribute=..., default=...) or map('filter', ...)
Value map_filter(const Value& v, const Arguments& a, Budget& b) {
  List out;
  const Value attribute = a.get(99, "attribute");
  Arguments rest;
  if (attribute.is(Value::undefined) && a.positional.empty())
    throw TemplateError("map: names neither attribute nor filter");
  if (a.positional.size() > 1) rest.positional.assign(a.positional.begin() + 1, a.positional.end());
  for (const Value& item : iterate(v, b)) {
    b.step();
    if (attribute.is(Value::undefined)) {
      out.push_back(apply_filter(a.positional[0].str(), item, rest, b));
      continue;
    }
    Value x = attribute_path(item, attribute.str());
    if (x.is(Value::undefined)) x = a.get(99, "default");
    out.push_back(std::move(x));
  }
  return Value(std::move(out));
}

// select, reject, selectattr, rejectattr
Value chosen(const Value& v, const Arguments& a, Budget& b, bool wanted, bool by_attribute) {
  const size_t skip = by_attribute ? 1 : 0;
  if (by_attribute && a.positional.empty()) throw TemplateError("selectattr: names no attribute");
  Arguments rest;
  if (a.positional.size() > skip + 1)
    rest.positional.assign(a.positional.begin() + static_cast<std::ptrdiff_t>(skip) + 1, a.positional.end());
  List out;
  for (const Value& item : iterate(v, b)) {
    b.step();
    const Value subject = by_attribute ? attribute_path(item, a.positional[0].str()) : item;
    const bool yes = a.positional.size() > skip ? apply_test(a.positional[skip].str(), subject, rest, b)
                                                : subject.truthy();
    if (yes == wanted) out.push_back(item);
  }
  return Value(std::move(out));
}

Value sorted(const Value& v, const Arguments& a, Budget& b) {
  List items = iterate(v, b);
  const std::string attribute = text_argument(a, 2, "attribute", "");
  const bool sensitive = a.get(1, "case_sensitive").truthy();
  auto key = [&](const Value& x) {
    Value k = attribute.empty() ? x : attribute_path(x, attribute);
    return !sensitive && k.is(Value::string) ? Value(lower(k.text())) : k;
  };
  // insertion into a sorted list: stable, and safe whatever less() says
  List out;
  for (Value& x : items) {
    size_t at = out.size();
    while (at > 0 && key(x).less(key(out[at - 1]))) b.step(), --at;
    out.insert(out.begin() + static_cast<std::ptrdiff_t>(at), std::move(x));
  }
  if (a.get(0, "reverse").truthy()) std::reverse(out.begin(), out.end());
  return Value(std::move(out));
}

Value dict_sorted(const Value& v, const Arguments& a, Budget& b) {
  Arguments by;
  by.named = {{"attribute", Value(text_argument(a, 1, "by", "key") == "value" ? "1" : "0")},
              {"reverse", Value(a.get(2, "reverse").truthy())},
              {"case_sensitive", Value(a.get(0, "case_sensitive").truthy())}};
  return sorted(pairs(v, b), by, b);
}

Value unique(const Value& v, const Arguments&, Budget& b) {
  List out;
  for (const Value& x : iterate(v, b)) {
    const bool seen = std::any_of(out.begin(), out.end(), [&](auto& y) {
      b.step();
      return x == y || (x.is(Value::string) && y.is(Value::string) && lower(x.text()) == lower(y.text()));
    });
    if (!seen) out.push_back(x);
  }
  return Value(std::move(out));
}

Value extreme(const Value& v, Budget& b, bool largest) {
  Value best;
  for (const Value& x : iterate(v, b))
    if (best.is(Value::undefined) || (largest ? best.less(x) : x.less(best))) best = x;
  return best;
}

Value sum(const Value& v, const Arguments& a, Budget& b) {
  const std::string attribute = text_argument(a, 0, "attribute", "");
  double real = 0;
  int64_t whole = 0;
  bool exact = true;
  for (const Value& item : iterate(v, b)) {
    const Value x = attribute.empty() ? item : attribute_path(item, attribute);
    real += x.as_real();
    exact = exact && !x.is(Value::real) && !__builtin_add_overflow(whole, x.as_int(), &whole);
  }
  return exact ? Value(whole) : Value(real);
}

Value to_int(const Value& v, const Arguments& a, Budget&) {
  if (v.is(Value::real) && std::fabs(v.as_real()) < 9e18) return Value(static_cast<int64_t>(v.as_real()));
  if (v.is_number() && !v.is(Value::real)) return Value(v.as_int());
  if (v.is(Value::string)) {
    char* end = nullptr;
    const std::string text = strip(v.text(), "", 3);
    const double d = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == '\0' && std::fabs(d) < 9e18) return Value(static_cast<int64_t>(d));
  }
  return Value(int_argument(a, 0, "default", 0));
}

Value to_real(const Value& v, const Arguments& a, Budget&) {
  if (v.is_number()) return Value(v.as_real());
  if (v.is(Value::string)) {
    char* end = nullptr;
    const std::string text = strip(v.text(), "", 3);
    const double d = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == '\0') return Value(d);
  }
  const Value absent = a.get(0, "default");
  return absent.is(Value::undefined) ? Value(0.0) : absent;
}

Value rounded(const Value& v, const Arguments& a, Budget&) {
  const auto digits = static_cast<double>(std::clamp<int64_t>(int_argument(a, 0, "precision", 0), -15, 15));
  const std::string how = text_argument(a, 1, "method", "common");
  const double scale = std::pow(10, digits), x = v.as_real() * scale;
  return Value((how == "ceil" ? std::ceil(x) : how == "floor" ? std::floor(x) : std::nearbyint(x)) / scale);
}

Value indented(const Value& v, const Arguments& a, Budget& b) {
  const Value width = a.get(0, "width");
  const std::string pad =
      width.is(Value::string)
          ? width.text()
          : std::string(static_cast<size_t>(std::clamp<int64_t>(int_argument(a, 0, "width", 4), 0, 1000)),
                        ' ');
  const bool first = a.get(1, "first").truthy(), blank = a.get(2, "blank").truthy();
  std::string out;
  size_t line = 0;
  for (const std::string& l : split(v.str(), "\n", -1)) {
    if (line > 0) out += "\n";
    out += ((line > 0 && (blank || !l.empty())) || (line == 0 && first) ? pad : "") + l;
    b.make(pad.size() + l.size());
    ++line;
  }
  return Value(out);
}

Value escaped(const Value& v, const Arguments&, Budget& b) {
  std::string out;
  for (char c : v.str()) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  b.make(out.size());
  return Value(out);
}

Value to_json(const Value& v, const Arguments& a, Budget& b) {
  std::string out = v.json(static_cast<int>(std::clamp<int64_t>(int_argument(a, 3, "indent", -1), -1, 16)));
  b.make(out.size());
  return Value(std::move(out));
}

Value replaced(const Value& v, const Arguments& a, Budget& b) {
  const std::string from = text_argument(a, 0, "old", ""), to = text_argument(a, 1, "new", ""),
                    text = v.str();
  b.make(text.size() + (from.empty() ? 0 : text.size() / from.size() * to.size()));
  return Value(replace(text, from, to, int_argument(a, 2, "count", -1)));
}

Value defaulted(const Value& v, const Arguments& a, Budget&) {
  const bool missing = v.is(Value::undefined) || (a.get(1, "boolean").truthy() && !v.truthy());
  if (!missing) return v;
  const Value d = a.get(0, "default_value");
  return d.is(Value::undefined) ? Value("") : d;
}

Value first_of(const Value& v, const Arguments&, Budget& b) {
  const List items = iterate(v, b);
  return items.empty() ? Value() : items.front();
}
Value last_of(const Value& v, const Arguments&, Budget& b) {
  const List items = iterate(v, b);
  return items.empty() ? Value() : items.back();
}

Value reversed(const Value& v, const Arguments&, Budget& b) {
  List items = iterate(v, b);
  std::reverse(items.begin(), items.end());
  if (!v.is(Value::string)) return Value(std::move(items));
  return joined(Value(std::move(items)), "", "", b);
}

Value absolute(const Value& v, const Arguments&, Budget&) {
  if (v.is(Value::real)) return Value(std::fabs(v.as_real()));
  const int64_t i = v.as_int();
  return i < 0 && i != INT64_MIN ? Value(-i) : Value(i);
}

const std::map<std::string, Filter>& filters() {
  static const std::map<std::string, Filter> all = {
      {"abs", absolute},
      {"capitalize", [](const Value& v, const Arguments&, Budget&) { return Value(title(v.str(), false)); }},
      {"count", [](const Value& v, const Arguments&, Budget&) { return Value(length_of(v)); }},
      {"d", defaulted},
      {"default", defaulted},
      {"dictsort", dict_sorted},
      {"e", escaped},
      {"escape", escaped},
      {"first", first_of},
      {"float", to_real},
      {"indent", indented},
      {"int", to_int},
      {"items", [](const Value& v, const Arguments&, Budget& b) { return pairs(v, b); }},
      {"join",
       [](const Value& v, const Arguments& a, Budget& b) {
         return joined(v, text_argument(a, 0, "d", ""), text_argument(a, 1, "attribute", ""), b);
       }},
      {"last", last_of},
      {"length", [](const Value& v, const Arguments&, Budget&) { return Value(length_of(v)); }},
      {"list", [](const Value& v, const Arguments&, Budget& b) { return Value(iterate(v, b)); }},
      {"lower", [](const Value& v, const Arguments&, Budget&) { return Value(lower(v.str())); }},
      {"map", map_filter},
      {"max", [](const Value& v, const Arguments&, Budget& b) { return extreme(v, b, true); }},
      {"min", [](const Value& v, const Arguments&, Budget& b) { return extreme(v, b, false); }},
      {"reject", [](const Value& v, const Arguments& a, Budget& b) { return chosen(v, a, b, false, false); }},
      {"rejectattr",
       [](const Value& v, const Arguments& a, Budget& b) { return chosen(v, a, b, false, true); }},
      {"replace", replaced},
      {"reverse", reversed},
      {"round", rounded},
      {"safe", [](const Value& v, const Arguments&, Budget&) { return v; }},
      {"select", [](const Value& v, const Arguments& a, Budget& b) { return chosen(v, a, b, true, false); }},
      {"selectattr",
       [](const Value& v, const Arguments& a, Budget& b) { return chosen(v, a, b, true, true); }},
      {"sort", sorted},
      {"string", [](const Value& v, const Arguments&, Budget&) { return Value(v.str()); }},
      {"sum", sum},
      {"title", [](const Value& v, const Arguments&, Budget&) { return Value(title(v.str(), true)); }},
      {"tojson", to_json},
      {"trim", [](const Value& v, const Arguments& a,
                  Budget&) { return Value(strip(v.str(), text_argument(a, 0, "chars", ""), 3)); }},
      {"unique", unique},
      {"upper", [](const Value& v, const Arguments&, Budget&) { return Value(upper(v.str())); }},
  };
  return all;
}

// ---- methods of texts

template <int Sides>
Value strip_method(const Value& v, const Arguments& a, Budget&) {
  return Value(strip(v.text(), text_argument(a, 0, "chars", ""), Sides));
}

template <bool AtEnd>
Value affix(const Value& v, const Arguments& a, Budget&) {
  const Value sought = a.get(0, "prefix");
  const List all = sought.is(Value::list) ? sought.items() : List{sought};
  return Value(std::any_of(all.begin(), all.end(), [&](const Value& x) {
    if (!x.is(Value::string)) throw TemplateError("startswith, endswith: a text was expected");
    const std::string &t = v.text(), &s = x.text();
    return t.size() >= s.size() && t.compare(AtEnd ? t.size() - s.size() : 0, s.size(), s) == 0;
  }));
}

Value split_method(const Value& v, const Arguments& a, Budget& b) {
  const Value separator = a.get(0, "sep");
  if (separator.is(Value::string) && separator.text().empty())
    throw TemplateError("split: the separator is empty");
  return texts(split(v.text(), text_argument(a, 0, "sep", ""), int_argument(a, 1, "maxsplit", -1)), b);
}

Value rsplit_method(const Value& v, const Arguments& a, Budget& b) {
  const std::string separator = text_argument(a, 0, "sep", "");
  const int64_t limit = int_argument(a, 1, "maxsplit", -1);
  std::vector<std::string> parts = split(v.text(), separator, -1);
  while (limit >= 0 && static_cast<int64_t>(parts.size()) > limit + 1) {
    parts[0] += (separator.empty() ? " " : separator) + parts[1];
    parts.erase(parts.begin() + 1);
    b.step();
  }
  return texts(parts, b);
}

Value lines(const Value& v, const Arguments&, Budget& b) {
  auto parts = split(v.text(), "\n", -1);
  if (!parts.empty() && parts.back().empty()) parts.pop_back();
  return texts(parts, b);
}

Value find_method(const Value& v, const Arguments& a, Budget&) {
  const size_t at = v.text().find(text_argument(a, 0, "sub", ""));
  if (at == std::string::npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(characters(v.text().substr(0, at)).size()));
}

Value count_method(const Value& v, const Arguments& a, Budget&) {
  const std::string sub = text_argument(a, 0, "sub", "");
  int64_t n = 0;
  for (size_t at = 0; !sub.empty() && (at = v.text().find(sub, at)) != std::string::npos; at += sub.size())
    ++n;
  return Value(n);
}

template <bool Prefix>
Value remove_affix(const Value& v, const Arguments& a, Budget& b) {
  const std::string part = text_argument(a, 0, "prefix", "");
  if (part.empty() || !affix<!Prefix>(v, a, b).truthy()) return v;
  return Value(Prefix ? v.text().substr(part.size()) : v.text().substr(0, v.text().size() - part.size()));
}

bool all_characters(const std::string& text, bool (*ok)(unsigned char)) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [&](char c) { return ok(static_cast<unsigned char>(c)); });
}

const std::map<std::string, Method>& text_methods() {
  static const std::map<std::string, Method> all = {
      {"strip", strip_method<3>},
      {"lstrip", strip_method<1>},
      {"rstrip", strip_method<2>},
      {"startswith", affix<false>},
      {"endswith", affix<true>},
      {"split", split_method},
      {"rsplit", rsplit_method},
      {"splitlines", lines},
      {"find", find_method},
      {"count", count_method},
      {"replace", replaced},
      {"removeprefix", remove_affix<true>},
      {"removesuffix", remove_affix<false>},
      {"upper", [](const Value& v, const Arguments&, Budget&) { return Value(upper(v.text())); }},
      {"lower", [](const Value& v, const Arguments&, Budget&) { return Value(lower(v.text())); }},
      {"title", [](const Value& v, const Arguments&, Budget&) { return Value(title(v.text(), true)); }},
      {"capitalize", [](const Value& v, const Arguments&, Budget&) { return Value(title(v.text(), false)); }},
      {"join", [](const Value& v, const Arguments& a,
                  Budget& b) { return joined(a.get(0, "iterable"), v.text(), "", b); }},
      {"isdigit",
       [](const Value& v, const Arguments&, Budget&) {
         return Value(all_characters(v.text(), [](unsigned char c) { return c >= '0' && c <= '9'; }));
       }},
      {"isspace", [](const Value& v, const Arguments&,
                     Budget&) { return Value(!v.text().empty() && strip(v.text(), "", 3).empty()); }},
  };
  return all;
}

const std::map<std::string, Method>& dict_methods() {
  static const std::map<std::string, Method> all = {
      {"items", [](const Value& v, const Arguments&, Budget& b) { return pairs(v, b); }},
      {"keys", [](const Value& v, const Arguments&, Budget& b) { return Value(iterate(v, b)); }},
      {"values",
       [](const Value& v, const Arguments&, Budget& b) {
         List out;
         for (const auto& [k, x] : v.entries()) b.make(32), out.push_back(x);
         return Value(std::move(out));
       }},
      {"get",
       [](const Value& v, const Arguments& a, Budget&) {
         Value found = v.find(a.get(0, "key").str());
         if (!found.is(Value::undefined)) return found;
         const Value absent = a.get(1, "default");
         return absent.is(Value::undefined) ? Value::null() : absent;
       }},
  };
  return all;
}

const std::map<std::string, Method>& list_methods() {
  static const std::map<std::string, Method> all = {
      {"index",
       [](const Value& v, const Arguments& a, Budget&) {
         const auto it = std::find(v.items().begin(), v.items().end(), a.get(0, "value"));
         if (it == v.items().end()) throw TemplateError("index: the value is not in the list");
         return Value(static_cast<int64_t>(it - v.items().begin()));
       }},
      {"count",
       [](const Value& v, const Arguments& a, Budget&) {
         return Value(
             static_cast<int64_t>(std::count(v.items().begin(), v.items().end(), a.get(0, "value"))));
       }},
  };
  return all;
}

Value make_range(const Arguments& a, Budget& b) {
  if (a.positional.empty() || a.positional.size() > 3)
    throw TemplateError("range: one to three numbers are expected");
  const bool one = a.positional.size() == 1;
  const int64_t start = one ? 0 : a.positional[0].as_int(), stop = a.positional[one ? 0 : 1].as_int(),
                step = a.positional.size() > 2 ? a.positional[2].as_int() : 1;
  if (step == 0) throw TemplateError("range: the step is zero");
  List out;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (out.size() >= 100'000) throw TemplateError("range: is too long");
    b.make(32);
    out.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value(std::move(out));
}

Value time_text(const Arguments& a) {
  const std::string format = text_argument(a, 0, "format", "%Y-%m-%d");
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char buffer[512] = {};
  if (format.size() > 100) throw TemplateError("strftime_now: the format is too long");
  return Value(std::string(buffer, std::strftime(buffer, sizeof buffer, format.c_str(), &parts)));
}

bool compare(const Value& x, const Value& y, const std::string& op) {
  if (op == "lt") return x.less(y);
  if (op == "gt") return y.less(x);
  return op == "le" ? !y.less(x) : !x.less(y);
}

bool type_test(const std::string& name, const Value& v, bool& known) {
  const auto t = v.type();
  known = true;
  if (name == "defined") return t != Value::undefined;
  if (name == "undefined") return t == Value::undefined;
  if (name == "none") return t == Value::none;
  if (name == "string") return t == Value::string;
  if (name == "boolean") return t == Value::boolean;
  if (name == "integer") return t == Value::integer;
  if (name == "float") return t == Value::real;
  if (name == "number") return v.is_number();
  if (name == "mapping") return t == Value::dict;
  if (name == "iterable" || name == "sequence")
    return t == Value::string || t == Value::list || t == Value::dict;
  if (name == "callable") return t == Value::function;
  if (name == "true") return t == Value::boolean && v.truthy();
  if (name == "false") return t == Value::boolean && !v.truthy();
  known = false;
  return false;
}

}  // namespace

Value apply_filter(const std::string& name, const Value& subject, const Arguments& args, Budget& budget) {
  budget.step();
  const auto it = filters().find(name);
  if (it == filters().end())
    throw TemplateError(fmt::format("the filter '{}' is not supported", name.substr(0, 40)));
  return it->second(subject, args, budget);
}

bool apply_test(const std::string& name, const Value& v, const Arguments& a, Budget& budget) {
  budget.step();
  bool known;
  const bool yes = type_test(name, v, known);
  if (known) return yes;
  const Value other = a.get(0, "other");
  if (name == "==" || name == "eq" || name == "equalto" || name == "sameas") return v == other;
  if (name == "!=" || name == "ne") return !(v == other);
  if (name == "in") return contains(other, v);
  if (name == "odd" || name == "even") return (v.as_int() & 1) == (name == "odd" ? 1 : 0);
  if (name == "divisibleby") {
    if (other.as_int() == 0 || other.as_int() == -1) return other.as_int() == -1;
    return v.as_int() % other.as_int() == 0;
  }
  if (name == "lower") return v.str() == lower(v.str());
  if (name == "upper") return v.str() == upper(v.str());
  const std::map<std::string, std::string> orders = {
      {"<", "lt"},  {"lt", "lt"}, {"lessthan", "lt"}, {">", "gt"},  {"greaterthan", "gt"},
      {"gt", "gt"}, {"<=", "le"}, {"le", "le"},       {">=", "ge"}, {"ge", "ge"}};
  if (const auto it = orders.find(name); it != orders.end()) return compare(v, other, it->second);
  throw TemplateError(fmt::format("the test '{}' is not supported", name.substr(0, 40)));
}

Value method_of(const Value& object, const std::string& name, Budget& budget) {
  const std::map<std::string, Method>* table = object.is(Value::string) ? &text_methods()
                                               : object.is(Value::dict) ? &dict_methods()
                                               : object.is(Value::list) ? &list_methods()
                                                                        : nullptr;
  if (!table) return {};
  const auto it = table->find(name);
  if (it == table->end()) return {};
  return Value(
      Function([object, m = it->second, &budget](const Arguments& a) { return m(object, a, budget); }));
}

Value attribute_path(const Value& object, const std::string& path) {
  Value v = object;
  for (const std::string& part : split(path, ".", -1)) {
    if (v.is(Value::list) && !part.empty() && part.size() < 9 &&
        part.find_first_not_of("0123456789") == std::string::npos) {
      const auto i = static_cast<size_t>(std::stoll(part));
      v = i < v.items().size() ? Value(v.items()[i]) : Value();
    } else {
      v = v.find(part);
    }
  }
  return v;
}

bool contains(const Value& container, const Value& item) {
  switch (container.type()) {
    case Value::string:
      if (!item.is(Value::string)) throw TemplateError("in: a text was expected on the left");
      return container.text().find(item.text()) != std::string::npos;
    case Value::list:
      return std::find(container.items().begin(), container.items().end(), item) != container.items().end();
    case Value::dict:
      return item.is(Value::string) && !container.find(item.text()).is(Value::undefined);
    case Value::undefined:
      return false;
    default:
      throw TemplateError(fmt::format("in: {} contains nothing", container.type_name()));
  }
}

List iterate(const Value& value, Budget& budget) {
  List out;
  switch (value.type()) {
    case Value::list:
      budget.make(value.items().size() * 32);
      return value.items();
    case Value::dict:
      for (const auto& [k, v] : value.entries()) out.emplace_back(k);
      break;
    case Value::string:
      for (auto& c : characters(value.text())) budget.make(64), out.emplace_back(std::move(c));
      break;
    case Value::undefined:
      break;
    default:
      throw TemplateError(fmt::format("{} cannot be looped over", value.type_name()));
  }
  budget.make(out.size() * 32);
  return out;
}

Dict global_functions(Budget& budget) {
  auto to_dict = [](const Arguments& a) { return Value(Dict(a.named)); };
  return {{"range", Value(Function([&budget](const Arguments& a) { return make_range(a, budget); }))},
          {"namespace", Value(Function(to_dict))},
          {"dict", Value(Function(to_dict))},
          {"strftime_now", Value(Function(time_text))},
          {"raise_exception", Value(Function([](const Arguments& a) -> Value {
             throw TemplateError("the template refuses this conversation: " + a.get(0, "message").str());
           }))}};
}

std::string percent_format(const std::string& format, const Value& arguments) {
  const List all = arguments.is(Value::list) ? arguments.items() : List{arguments};
  size_t used = 0;
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    const char kind = ++i < format.size() ? format[i] : ' ';
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (std::string("sdri").find(kind) == std::string::npos)
      throw TemplateError("only %s, %d, %i, %r are supported");
    if (used >= all.size()) throw TemplateError("not enough arguments for the format");
    const Value& v = all[used++];
    out += kind == 's' ? v.str() : kind == 'r' ? v.repr() : std::to_string(v.as_int());
  }
  if (used < all.size() && arguments.is(Value::list))
    throw TemplateError("too many arguments for the format");
  return out;
}

}  // namespace megatrain::chat
