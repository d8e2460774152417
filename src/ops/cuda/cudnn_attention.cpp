#include "ops/cuda/cudnn_attention.h"

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "core/error.h"

namespace fe = cudnn_frontend;

namespace megatrain {
namespace {

using Graph = std::shared_ptr<fe::graph::Graph>;
using Attributes = fe::graph::Tensor_attributes;
enum Uid : int64_t { kQ = 1, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV };

constexpr int64_t kWorkspaceGoal = int64_t{1} << 30;
constexpr int64_t kSlack = int64_t{32} << 20;  // dQ accumulators and the like

// One graph computes `batch` sequences by `heads` heads inside tensors of `all_heads` heads.
struct Shape {
  int64_t batch, heads, all_heads, seq_len, head_dim;
  bool backward;
  auto key() const { return std::tuple(batch, heads, all_heads, seq_len, head_dim, backward); }
  bool operator<(const Shape& o) const { return key() < o.key(); }
};

void check(fe::error_t e, const char* what) {
  if (!e.is_good()) fail(fmt::format("cuDNN: {}: {}", what, e.get_message()));
}

Attributes packed(const char* name, Uid uid, const Shape& s) {  // a third of qkv [B, T, 3, H, D]
  const int64_t row = 3 * s.all_heads * s.head_dim;
  return Attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({s.batch, s.heads, s.seq_len, s.head_dim})
      .set_stride({row * s.seq_len, s.head_dim, row, 1});
}

Attributes plain(const char* name, Uid uid, const Shape& s) {  // [B, T, H, D]
  const int64_t row = s.all_heads * s.head_dim;
  return Attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({s.batch, s.heads, s.seq_len, s.head_dim})
      .set_stride({row * s.seq_len, s.head_dim, row, 1});
}

Attributes stats(const Shape& s) {  // log-sum-exp [B, H, T] fp32
  return Attributes()
      .set_name("stats")
      .set_uid(kStats)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({s.batch, s.heads, s.seq_len, 1})
      .set_stride({s.all_heads * s.seq_len, s.seq_len, 1, 1});
}

void become(const std::shared_ptr<Attributes>& t, const Attributes& like) {
  t->set_output(true).set_uid(like.get_uid()).set_dim(like.get_dim()).set_stride(like.get_stride());
}

template <class A>
A causal(A a, const Shape& s) {
  a.set_attn_scale(1.0f / std::sqrt(static_cast<float>(s.head_dim)));
  a.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  return a;
}

Graph describe(const Shape& s) {
  auto g = std::make_shared<fe::graph::Graph>();
  g->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto q = g->tensor(packed("q", kQ, s)), k = g->tensor(packed("k", kK, s)),
             v = g->tensor(packed("v", kV, s));
  if (!s.backward) {
    auto a = causal(fe::graph::SDPA_attributes().set_name("sdpa"), s);
    a.set_generate_stats(true);
    auto [o, st] = g->sdpa(q, k, v, a);
    become(o, plain("o", kO, s));
    become(st, stats(s));
    st->set_data_type(fe::DataType_t::FLOAT);
    return g;
  }
  const auto o = g->tensor(plain("o", kO, s)), d_o = g->tensor(plain("dO", kDO, s)), st = g->tensor(stats(s));
  auto a = causal(fe::graph::SDPA_backward_attributes().set_name("sdpa_backward"), s);
  a.set_deterministic_algorithm(true);
  auto [dq, dk, dv] = g->sdpa_backward(q, k, v, o, d_o, st, a);
  become(dq, packed("dq", kDQ, s));
  become(dk, packed("dk", kDK, s));
  become(dv, packed("dv", kDV, s));
  return g;
}

char* advance(const Tensor& t, int64_t elements) {
  return static_cast<char*>(t.data) + elements * size_of(t.dtype);
}

}  // namespace

struct CudnnAttention::Impl {
  cudnnHandle_t handle = nullptr;
  std::map<Shape, Graph> graphs;

  const Graph& graph(const Shape& s) {
    auto it = graphs.find(s);
    if (it != graphs.end()) return it->second;
    Graph g = describe(s);
    check(g->build(handle, {fe::HeurMode_t::A}), "no plan for this attention");
    return graphs.emplace(s, std::move(g)).first->second;
  }

  void run(cudaStream_t stream, const Shape& s, std::unordered_map<int64_t, void*>& tensors, void* workspace,
           int64_t bytes) {
    const Graph& g = graph(s);
    int64_t needed = 0;
    check(g->get_workspace_size(needed), "workspace size");
    if (needed > bytes)
      fail(
          fmt::format("cuDNN: attention needs {} MiB of workspace, {} MiB were planned; lower "
                      "sequence_length or micro_batch",
                      needed >> 20, bytes >> 20));
    if (cudnnSetStream(handle, stream) != CUDNN_STATUS_SUCCESS) fail("cuDNN: cudnnSetStream failed");
    check(g->execute(handle, tensors, workspace), "attention");
  }
};

CudnnAttention::CudnnAttention() : impl_(std::make_unique<Impl>()) {
  if (cudnnCreate(&impl_->handle) != CUDNN_STATUS_SUCCESS)
    fail("cuDNN: cannot be initialised; is libcudnn 9 installed?");
}
CudnnAttention::~CudnnAttention() {
  cudnnDestroy(impl_->handle);
}

bool CudnnAttention::supports(DType type, int64_t seq_len, int64_t head_dim, double dropout) {
  return type == DType::bf16 && dropout == 0 && seq_len % 128 == 0 && head_dim % 8 == 0 && head_dim <= 128;
}

int64_t CudnnAttention::workspace_bytes(int64_t batch, int64_t seq_len, int64_t num_heads) {
  const int64_t head = seq_len * seq_len * 2, sequence = head * num_heads;
  const int64_t whole = std::min(batch, std::max<int64_t>(kWorkspaceGoal / sequence, 1)) * sequence;
  const int64_t heads = std::clamp<int64_t>(kWorkspaceGoal / head, 1, num_heads) * head;
  return (sequence <= kWorkspaceGoal ? whole : heads) + kSlack + batch * num_heads * seq_len * 512;
}

void CudnnAttention::forward(cudaStream_t stream, const AttentionArgs& a, void* workspace, int64_t bytes) {
  const Shape s{a.batch, a.num_heads, a.num_heads, a.seq_len, a.head_dim, false};
  const int64_t c = a.num_heads * a.head_dim;
  std::unordered_map<int64_t, void*> t = {{kQ, a.qkv.data},
                                          {kK, advance(a.qkv, c)},
                                          {kV, advance(a.qkv, 2 * c)},
                                          {kO, a.out.data},
                                          {kStats, a.lse.data}};
  impl_->run(stream, s, t, workspace, bytes);
}

// In pieces of whole sequences, or of heads of one sequence, so that dP fits the workspace.
void CudnnAttention::backward(cudaStream_t stream, const AttentionBackwardArgs& a, void* workspace,
                              int64_t bytes) {
  const int64_t head = a.seq_len * a.seq_len * 2, sequence = head * a.num_heads, c = a.num_heads * a.head_dim;
  const bool whole = sequence <= kWorkspaceGoal;
  const int64_t batch_step = whole ? std::min(a.batch, kWorkspaceGoal / sequence) : 1;
  const int64_t head_step = whole ? a.num_heads : std::clamp<int64_t>(kWorkspaceGoal / head, 1, a.num_heads);
  for (int64_t b = 0; b < a.batch; b += batch_step)
    for (int64_t h = 0; h < a.num_heads; h += head_step) {
      const Shape s{std::min(batch_step, a.batch - b),
                    std::min(head_step, a.num_heads - h),
                    a.num_heads,
                    a.seq_len,
                    a.head_dim,
                    true};
      const int64_t at3 = b * a.seq_len * 3 * c + h * a.head_dim, at1 = b * a.seq_len * c + h * a.head_dim;
      std::unordered_map<int64_t, void*> t = {
          {kQ, advance(a.qkv, at3)},          {kK, advance(a.qkv, at3 + c)},
          {kV, advance(a.qkv, at3 + 2 * c)},  {kO, advance(a.out, at1)},
          {kDO, advance(a.dout, at1)},        {kStats, advance(a.lse, (b * a.num_heads + h) * a.seq_len)},
          {kDQ, advance(a.dqkv, at3)},        {kDK, advance(a.dqkv, at3 + c)},
          {kDV, advance(a.dqkv, at3 + 2 * c)}};
      impl_->run(stream, s, t, workspace, bytes);
    }
}

}  // namespace megatrain
