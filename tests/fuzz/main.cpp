#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  megatrain::fuzz::FUZZ_TARGET(data, size);
  return 0;
}
