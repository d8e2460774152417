#pragma once
// defines: say, warn — what a long run tells, on stdout and stderr. A log that can no longer be written (its
// disk is full, its terminal is gone) does not end the run, as fmt::print would.

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace megatrain {

template <class... T>
void say(fmt::format_string<T...> text, T&&... args) {
  const std::string s = fmt::format(text, std::forward<T>(args)...);
  std::fwrite(s.data(), 1, s.size(), stdout);
}

template <class... T>
void warn(fmt::format_string<T...> text, T&&... args) {
  const std::string s = fmt::format(text, std::forward<T>(args)...);
  std::fwrite(s.data(), 1, s.size(), stderr);
}

}  // namespace megatrain
