#include "checkpoint/hash.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

namespace megatrain {

struct Hash64::State {
  XXH3_state_t xxh;
};

Hash64::Hash64() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh);
}
Hash64::~Hash64() = default;

void Hash64::add(const void* data, size_t bytes) {
  XXH3_64bits_update(&state_->xxh, data, bytes);
}

std::string Hash64::hex() const {
  return fmt::format("{:016x}", XXH3_64bits_digest(&state_->xxh));
}

}  // namespace megatrain
