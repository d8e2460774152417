#pragma once
// defines: Error, fail — the one exception type for everything a user can cause or fix.

#include <stdexcept>
#include <string>

namespace megatrain {

/// A problem the user can act on: one line saying what is wrong, where, and what to do.
/// The command line prints it and exits with code 2. Internal mistakes throw std::logic_error.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(const std::string& message) {
  throw Error(message);
}

}  // namespace megatrain
