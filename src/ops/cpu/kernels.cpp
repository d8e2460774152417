#include "ops/cpu/kernels.h"

#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace megatrain {

namespace isa_base {
extern const CpuKernels kernels;
}
#ifdef MT_HAVE_X86_ISAS
namespace isa_v3 {
extern const CpuKernels kernels;
}
namespace isa_v4 {
extern const CpuKernels kernels;
}
#endif

const CpuKernels* cpu_kernels_for(const char* isa) {
  if (!std::strcmp(isa, "base")) return &isa_base::kernels;
#ifdef MT_HAVE_X86_ISAS
  if (!std::strcmp(isa, "v3") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return &isa_v3::kernels;
  if (!std::strcmp(isa, "v4") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return &isa_v4::kernels;
#endif
  return nullptr;
}

const CpuKernels& cpu_kernels() {
  static const CpuKernels& chosen = []() -> const CpuKernels& {
    if (const char* forced = std::getenv("MT_ISA")) {
      if (const CpuKernels* k = cpu_kernels_for(forced)) return *k;
      fail(std::string("MT_ISA=") + forced + ": not one of base, v3, v4, or this processor lacks it");
    }
    for (const char* isa : {"v4", "v3"})
      if (const CpuKernels* k = cpu_kernels_for(isa)) return *k;
    return isa_base::kernels;
  }();
  return chosen;
}

}  // namespace megatrain
