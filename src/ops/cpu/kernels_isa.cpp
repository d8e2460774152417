// Built once per instruction set with -DMT_ISA_NAMESPACE=isa_base|isa_v3|isa_v4 and the matching -march.
// gemm_kernel.inc wants contraction (FMA); the rest must not have it, or sets would differ in bits.
#include "ops/cpu/kernels.h"

#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#include "ops/cpu/gemm_kernel.inc"
#pragma GCC pop_options
#include "ops/cpu/kernels.inc"

#define MT_STRING_(x) #x
#define MT_STRING(x) MT_STRING_(x)

namespace megatrain {
namespace MT_ISA_NAMESPACE {

extern const CpuKernels kernels;
const CpuKernels kernels = {MT_STRING(MT_ISA_NAMESPACE) + 4,  // without "isa_"
                            adamw,
                            gemm,
                            gelu,
                            gelu_backward,
                            layer_norm_row,
                            layer_norm_backward_row,
                            layer_norm_backward_columns,
                            swiglu,
                            swiglu_backward,
                            rotate,
                            column_sum,
                            axpy,
                            add,
                            max,
                            dot,
                            exp_sum,
                            scale,
                            sum,
                            join};

}  // namespace MT_ISA_NAMESPACE
}  // namespace megatrain
