#include "core/units.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>

#include "core/error.h"

namespace megatrain {

std::string format_bytes(double b) {
  static const char* const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int i = 0;
  while (std::fabs(b) >= 1024 && i < 4) b /= 1024, ++i;
  return i == 0 ? fmt::format("{:.0f} B", b) : fmt::format("{:.2f} {}", b, names[i]);
}

std::string format_count(double n) {
  static const char* const names[] = {"", "K", "M", "B", "T"};
  int i = 0;
  while (n >= 1000 && i < 4) n /= 1000, ++i;
  return i == 0 ? fmt::format("{:.0f}", n) : fmt::format("{:.2f}{}", n, names[i]);
}

std::string format_duration(double s) {
  if (!std::isfinite(s) || s < 0) return "?";
  const auto t = static_cast<int64_t>(s);
  if (s < 60) return fmt::format("{:.1f}s", s);
  if (t < 3600) return fmt::format("{}m {:02}s", t / 60, t % 60);
  if (t < 86400) return fmt::format("{}h {:02}m", t / 3600, t / 60 % 60);
  return fmt::format("{}d {:02}h", t / 86400, t / 3600 % 24);
}

int64_t parse_bytes(const std::string& text, const std::string& option) {
  if (text.empty() || text == "auto") return 0;
  size_t used = 0;
  double value = -1;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
  }
  std::string unit;
  for (char c : text.substr(value < 0 ? 0 : used))
    if (!std::isspace(static_cast<unsigned char>(c)))
      unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  static const struct {
    const char* name;
    double scale;
  } units[] = {{"", 1},
               {"b", 1},
               {"k", 1024.0},
               {"kib", 1024.0},
               {"kb", 1e3},
               {"m", 1048576.},
               {"mb", 1e6},
               {"mib", 1048576.0},
               {"g", 1073741824.0},
               {"gb", 1e9},
               {"gib", 1073741824.0},
               {"t", 1099511627776.0},
               {"tb", 1e12},
               {"tib", 1099511627776.0}};
  if (value > 0 && std::isfinite(value))
    for (const auto& u : units)
      if (unit == u.name) return static_cast<int64_t>(value * u.scale);
  fail(fmt::format("{}: cannot read '{}' as a size; write e.g. 8GiB, 512MiB or auto", option, text));
}

}  // namespace megatrain
