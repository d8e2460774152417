#pragma once
// defines: Hash64 — XXH3 (xxhash.h) in one place.

#include <cstdint>
#include <memory>
#include <string>

namespace megatrain {

class Hash64 {
 public:
  Hash64();
  ~Hash64();
  Hash64(const Hash64&) = delete;
  Hash64& operator=(const Hash64&) = delete;
  void add(const void* data, size_t bytes);
  std::string hex() const;  ///< 16 digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megatrain
