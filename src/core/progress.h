#pragma once
// defines: ProgressFn — told the fraction done (0 to 1) of work that may take longer than two seconds.

#include <functional>

namespace megatrain {

using ProgressFn = std::function<void(double)>;

}  // namespace megatrain
