#pragma once
// defines: format_bytes, parse_bytes, format_count, format_duration.

#include <cstdint>
#include <string>

namespace megatrain {

std::string format_bytes(double bytes);    ///< "1.50 GiB"
std::string format_count(double count);    ///< "124.4M"
std::string format_duration(double secs);  ///< "1h 02m", "3m 20s", "4.2s"
/// "8GiB", "512MiB", "1.5 GB", "1000000" -> bytes; "auto" or "" -> 0. Throws Error otherwise.
int64_t parse_bytes(const std::string& text, const std::string& option);

}  // namespace megatrain
