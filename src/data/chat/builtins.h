#pragma once
// defines: filter, test, method, global_functions — what Jinja and Python bring along.

#include "data/chat/value.h"

namespace megatrain::chat {

/// Bounds that hold for one rendering; templates are not trusted.
class Budget {
 public:
  void step() { spend(steps_, kSteps, "takes too many steps"); }
  /// Bytes or elements that a built-in makes.
  void make(size_t n) {
    made_ += static_cast<int64_t>(n);
    if (made_ > kMade) throw TemplateError("makes too much text");
  }

 private:
  static constexpr int64_t kSteps = 2'000'000, kMade = int64_t{64} << 20;
  static void spend(int64_t& counter, int64_t limit, const char* what) {
    if (++counter > limit) throw TemplateError(what);
  }
  int64_t steps_ = 0, made_ = 0;
};

/// Throws TemplateError for a filter or test that is not known.
Value apply_filter(const std::string& name, const Value& subject, const Arguments& args, Budget& budget);
bool apply_test(const std::string& name, const Value& subject, const Arguments& args, Budget& budget);
/// A bound method of a text, list or mapping, or undefined.
Value method_of(const Value& object, const std::string& name, Budget& budget);
/// Attribute as Jinja's map(attribute='a.b') reads it.
Value attribute_path(const Value& object, const std::string& path);
bool contains(const Value& container, const Value& item);
/// What a for loop goes over: list items, keys of a mapping, characters of a text.
List iterate(const Value& value, Budget& budget);
/// range, namespace, dict, raise_exception, strftime_now.
Dict global_functions(Budget& budget);
/// Python's '%' on texts.
std::string percent_format(const std::string& format, const Value& arguments);

}  // namespace megatrain::chat
