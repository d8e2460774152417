#include "ops/cuda/cudnn_attention.h"

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "core/error.h"
#include "device/cuda/cuda_check.h"
#include "ops/cuda_workspace.h"

namespace fe = cudnn_frontend;

namespace megatrain {
namespace {

using Graph = std::shared_ptr<fe::graph::Graph>;
using Attributes = fe::graph::Tensor_attributes;
enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kStats,
  kDO,
  kDQ,
  kDK,
  kDV,
  kLengths,
  kQkvOffset,
  kOutOffset,
  kStatsOffset
};

// One graph computes `batch` sequences by `heads` query heads inside tensors of `all` heads.
struct Shape {
  int64_t batch, heads, seq_len;
  AttentionShape all;
  bool backward;
  bool packed = false;  // the batch is of documents, seq_len bounds their lengths
  auto key() const {
    return std::tuple(batch, heads, seq_len, all.num_heads, all.num_kv_heads, all.head_dim, all.window,
                      backward, packed);
  }
  bool operator<(const Shape& o) const { return key() < o.key(); }
};

void check(fe::error_t e, const char* what) {
  if (!e.is_good()) fail(fmt::format("cuDNN: {}: {}", what, e.get_message()));
}

// A part of qkv [B, T, H + 2·K, D].
Attributes packed(const char* name, Uid uid, const Shape& s, bool queries) {
  const int64_t row = s.all.qkv_width(), heads = queries ? s.heads : s.heads / s.all.group();
  return Attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({s.batch, heads, s.seq_len, s.all.head_dim})
      .set_stride({row * s.seq_len, s.all.head_dim, row, 1});
}

Attributes plain(const char* name, Uid uid, const Shape& s) {  // [B, T, H, D]
  const int64_t row = s.all.q_width();
  return Attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({s.batch, s.heads, s.seq_len, s.all.head_dim})
      .set_stride({row * s.seq_len, s.all.head_dim, row, 1});
}

Attributes stats(const Shape& s) {  // log-sum-exp [B, H, T] fp32
  return Attributes()
      .set_name("stats")
      .set_uid(kStats)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({s.batch, s.heads, s.seq_len, 1})
      .set_stride({s.all.num_heads * s.seq_len, s.packed ? 1 : s.seq_len, s.packed ? s.all.num_heads : 1, 1});
}

// Where each document's rows start, and how many there are.
struct Ragged {
  std::shared_ptr<Attributes> lengths, qkv, out, stats;
  Ragged(fe::graph::Graph& g, const Shape& s) {
    if (!s.packed) return;
    lengths = g.tensor(vector("lengths", kLengths, s.batch, fe::DataType_t::INT32));
    qkv = g.tensor(vector("qkv_offset", kQkvOffset, s.batch + 1, fe::DataType_t::INT64));
    out = g.tensor(vector("out_offset", kOutOffset, s.batch + 1, fe::DataType_t::INT64));
    stats = g.tensor(vector("stats_offset", kStatsOffset, s.batch + 1, fe::DataType_t::INT64));
  }
  static Attributes vector(const char* name, Uid uid, int64_t n, fe::DataType_t type) {
    return Attributes()
        .set_name(name)
        .set_uid(uid)
        .set_dim({n, 1, 1, 1})
        .set_stride({1, 1, 1, 1})
        .set_data_type(type);
  }
  template <class A>
  void mask(A& a) const {
    if (lengths) a.set_padding_mask(true).set_seq_len_q(lengths).set_seq_len_kv(lengths);
  }
};

Attributes with(Attributes t, const std::shared_ptr<Attributes>& offset) {
  if (offset) t.set_ragged_offset(offset);
  return t;
}

void become(const std::shared_ptr<Attributes>& t, Attributes like) {
  t->set_output(true).set_uid(like.get_uid()).set_dim(like.get_dim()).set_stride(like.get_stride());
  if (const auto offset = like.get_ragged_offset()) t->set_ragged_offset(offset);
}

template <class A>
A causal(A a, const Shape& s) {
  a.set_attn_scale(1.0f / std::sqrt(static_cast<float>(s.all.head_dim)));
  a.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  if (s.all.window > 0 && s.all.window < s.seq_len) a.set_diagonal_band_left_bound(s.all.window);
  return a;
}

Graph describe(const Shape& s) {
  auto g = std::make_shared<fe::graph::Graph>();
  g->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const Ragged r(*g, s);
  const auto q = g->tensor(with(packed("q", kQ, s, true), r.qkv)),
             k = g->tensor(with(packed("k", kK, s, false), r.qkv)),
             v = g->tensor(with(packed("v", kV, s, false), r.qkv));
  if (!s.backward) {
    auto a = causal(fe::graph::SDPA_attributes().set_name("sdpa"), s);
    a.set_generate_stats(true);
    r.mask(a);
    auto [o, st] = g->sdpa(q, k, v, a);
    become(o, with(plain("o", kO, s), r.out));
    become(st, with(stats(s), r.stats));
    st->set_data_type(fe::DataType_t::FLOAT);
    return g;
  }
  const auto o = g->tensor(with(plain("o", kO, s), r.out)), d_o = g->tensor(with(plain("dO", kDO, s), r.out)),
             st = g->tensor(with(stats(s), r.stats));
  auto a = causal(fe::graph::SDPA_backward_attributes().set_name("sdpa_backward"), s);
  a.set_deterministic_algorithm(true);
  r.mask(a);
  auto [dq, dk, dv] = g->sdpa_backward(q, k, v, o, d_o, st, a);
  become(dq, with(packed("dq", kDQ, s, true), r.qkv));
  become(dk, with(packed("dk", kDK, s, false), r.qkv));
  become(dv, with(packed("dv", kDV, s, false), r.qkv));
  return g;
}

char* advance(const Tensor& t, int64_t elements) {
  return static_cast<char*>(t.data) + elements * size_of(t.dtype);
}

// Copies rows of [count, T, width] into or out of [count, padded T, width]; the pad becomes zeros.
void copy_rows(cudaStream_t stream, const Tensor& from, const Tensor& to, int64_t count, int64_t t,
               int64_t width, bool pad) {
  const int64_t row = width * size_of(from.dtype), rows = padded_length(t);
  for (int64_t b = 0; b < count; ++b) {
    const char* a = static_cast<const char*>(from.data) + b * (pad ? t : rows) * row;
    char* c = static_cast<char*>(to.data) + b * (pad ? rows : t) * row;
    MT_CUDA(cudaMemcpyAsync(c, a, static_cast<size_t>(t * row), cudaMemcpyDeviceToDevice, stream));
    if (pad) MT_CUDA(cudaMemsetAsync(c + t * row, 0, static_cast<size_t>((rows - t) * row), stream));
  }
}

// [count, T] fp32 rows, padded alike.
void copy_stats(cudaStream_t stream, const Tensor& from, const Tensor& to, int64_t count, int64_t t,
                bool pad) {
  const auto rows = static_cast<size_t>(padded_length(t)) * 4, width = static_cast<size_t>(t) * 4;
  if (pad) MT_CUDA(cudaMemsetAsync(to.data, 0, static_cast<size_t>(count) * rows, stream));
  MT_CUDA(cudaMemcpy2DAsync(to.data, pad ? rows : width, from.data, pad ? width : rows, width,
                            static_cast<size_t>(count), cudaMemcpyDeviceToDevice, stream));
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

namespace {

constexpr int64_t kMostDocuments = 4096;  // of one call

// Packed documents of one group: how many at a time, by how many heads.
struct PackedPieces {
  int64_t documents, heads, longest;
  PackedPieces(const AttentionShape& s, int64_t longest_document, int64_t room) {
    longest = 128;
    while (longest < longest_document) longest *= 2;
    longest = std::min(longest, padded_length(s.seq_len));
    const int64_t one = attention_head_bytes(s, longest) * s.group();
    heads = std::clamp(room / one, int64_t{1}, s.num_kv_heads) * s.group();
    const int64_t most = heads < s.num_heads ? 1 : room / (one * s.num_kv_heads);
    documents = 1;
    while (documents * 2 <= std::min(most, kMostDocuments)) documents *= 2;
  }
};

}  // namespace

void CudnnAttention::forward(cudaStream_t stream, const AttentionArgs& a, void* workspace, int64_t bytes) {
  const AttentionShape& n = a.shape;
  if (a.documents.groups) return forward_packed(stream, a, static_cast<char*>(workspace), bytes);
  if (n.seq_len != padded_length(n.seq_len))
    return forward_padded(stream, a, static_cast<char*>(workspace), bytes);
  const Shape s{n.batch, n.num_heads, n.seq_len, n, false};
  std::unordered_map<int64_t, void*> t = {{kQ, a.qkv.data},
                                          {kK, advance(a.qkv, n.q_width())},
                                          {kV, advance(a.qkv, n.q_width() + n.kv_width())},
                                          {kO, a.out.data},
                                          {kStats, a.lse.data}};
  impl_->run(stream, s, t, workspace, bytes);
}

void CudnnAttention::backward(cudaStream_t stream, const AttentionBackwardArgs& a, void* workspace,
                              int64_t bytes) {
  const AttentionShape& n = a.shape;
  if (a.documents.groups) return backward_packed(stream, a, static_cast<char*>(workspace), bytes);
  if (n.seq_len != padded_length(n.seq_len))
    return backward_padded(stream, a, static_cast<char*>(workspace), bytes);
  const AttentionPieces p(n);
  for (int64_t b = 0; b < n.batch; b += p.batch)
    for (int64_t h = 0; h < n.num_heads; h += p.heads) {
      const Shape s{std::min(p.batch, n.batch - b), std::min(p.heads, n.num_heads - h), n.seq_len, n, true};
      const int64_t row = b * n.seq_len, q = row * n.qkv_width() + h * n.head_dim,
                    k = row * n.qkv_width() + n.q_width() + h / n.group() * n.head_dim, v = k + n.kv_width(),
                    out = row * n.q_width() + h * n.head_dim;
      std::unordered_map<int64_t, void*> t = {
          {kQ, advance(a.qkv, q)},     {kK, advance(a.qkv, k)},
          {kV, advance(a.qkv, v)},     {kO, advance(a.out, out)},
          {kDO, advance(a.dout, out)}, {kStats, advance(a.lse, (b * n.num_heads + h) * n.seq_len)},
          {kDQ, advance(a.dqkv, q)},   {kDK, advance(a.dqkv, k)},
          {kDV, advance(a.dqkv, v)}};
      impl_->run(stream, s, t, workspace, bytes);
    }
}

namespace {

// Hands out the pad area of the workspace.
struct PadArea {
  char* at;
  Tensor take(DType type, int64_t elements) {
    Tensor t(at, type, {elements});
    at += (t.bytes() + 127) / 128 * 128;
    return t;
  }
};

}  // namespace

void CudnnAttention::forward_padded(cudaStream_t stream, const AttentionArgs& a, char* workspace,
                                    int64_t bytes) {
  const AttentionShape& n = a.shape;
  const AttentionPadding pad(n, false);
  for (int64_t b = 0; b < n.batch; b += pad.sequences) {
    AttentionShape s = n;
    s.batch = std::min(pad.sequences, n.batch - b), s.seq_len = padded_length(n.seq_len);
    PadArea area{workspace};
    const int64_t rows = s.batch * s.seq_len, first = b * n.seq_len;
    const AttentionArgs p{area.take(DType::bf16, rows * n.qkv_width()),
                          area.take(DType::bf16, rows * n.q_width()),
                          area.take(DType::f32, rows * n.num_heads),
                          s,
                          {}};
    const Tensor qkv(advance(a.qkv, first * n.qkv_width()), DType::bf16, {1}),
        out(advance(a.out, first * n.q_width()), DType::bf16, {1}),
        lse(advance(a.lse, first * n.num_heads), DType::f32, {1});
    copy_rows(stream, qkv, p.qkv, s.batch, n.seq_len, n.qkv_width(), true);
    forward(stream, p, workspace + pad.bytes(), bytes - pad.bytes());
    copy_rows(stream, p.out, out, s.batch, n.seq_len, n.q_width(), false);
    copy_stats(stream, p.lse, lse, s.batch * n.num_heads, n.seq_len, false);
  }
}

void CudnnAttention::backward_padded(cudaStream_t stream, const AttentionBackwardArgs& a, char* workspace,
                                     int64_t bytes) {
  const AttentionShape& n = a.shape;
  const AttentionPadding pad(n, true);
  for (int64_t b = 0; b < n.batch; b += pad.sequences) {
    AttentionShape s = n;
    s.batch = std::min(pad.sequences, n.batch - b), s.seq_len = padded_length(n.seq_len);
    PadArea area{workspace};
    const int64_t rows = s.batch * s.seq_len, first = b * n.seq_len;
    const AttentionBackwardArgs p{area.take(DType::bf16, rows * n.qkv_width()),
                                  area.take(DType::bf16, rows * n.q_width()),
                                  area.take(DType::f32, rows * n.num_heads),
                                  area.take(DType::bf16, rows * n.q_width()),
                                  area.take(DType::bf16, rows * n.qkv_width()),
                                  {},
                                  s,
                                  {}};
    auto part = [&](const Tensor& t, int64_t width) {
      return Tensor(advance(t, first * width), t.dtype, {1});
    };
    copy_rows(stream, part(a.qkv, n.qkv_width()), p.qkv, s.batch, n.seq_len, n.qkv_width(), true);
    copy_rows(stream, part(a.out, n.q_width()), p.out, s.batch, n.seq_len, n.q_width(), true);
    copy_rows(stream, part(a.dout, n.q_width()), p.dout, s.batch, n.seq_len, n.q_width(), true);
    copy_stats(stream, part(a.lse, n.num_heads), p.lse, s.batch * n.num_heads, n.seq_len, true);
    backward(stream, p, workspace + pad.bytes(), bytes - pad.bytes());
    copy_rows(stream, p.dqkv, part(a.dqkv, n.qkv_width()), s.batch, n.seq_len, n.qkv_width(), false);
  }
}

namespace {

// Documents [first, first + count) of a micro-batch, as many of them as one call takes.
struct PackedCall {
  const AttentionShape& n;
  const PackedDocuments& documents;
  char* workspace;
  int64_t room;

  // Tensors that tell cuDNN where the documents lie, filled on the stream.
  std::unordered_map<int64_t, void*> offsets(cudaStream_t stream, int64_t first, int64_t count,
                                             int64_t padded) const {
    auto* offset = reinterpret_cast<int64_t*>(workspace);
    auto* lengths = reinterpret_cast<int32_t*>(offset + 3 * (padded + 1));
    const int64_t total = n.batch * n.seq_len;
    const int32_t* spans = documents.spans.i32();
    make_ragged_offsets(stream, {spans,
                                 spans + total,
                                 first,
                                 count,
                                 padded,
                                 total,
                                 {n.qkv_width(), n.q_width(), n.num_heads},
                                 lengths,
                                 offset});
    return {{kLengths, lengths},
            {kQkvOffset, offset},
            {kOutOffset, offset + padded + 1},
            {kStatsOffset, offset + 2 * (padded + 1)}};
  }

  // f(shape, first head, tensors) for every piece of every group.
  template <class F>
  void each(cudaStream_t stream, bool backward, F&& f) const {
    for (const DocumentGroup& g : *documents.groups) {
      const PackedPieces p(n, g.longest, room);
      const int64_t heads = backward ? p.heads : n.num_heads;
      for (int64_t at = 0; at < g.count; at += p.documents) {
        const int64_t count = std::min(p.documents, g.count - at);
        int64_t padded = 1;
        while (padded < count) padded *= 2;
        const auto t = offsets(stream, g.first + at, count, padded);
        for (int64_t h = 0; h < n.num_heads; h += heads)
          f(Shape{padded, std::min(heads, n.num_heads - h), p.longest, n, backward, true}, h, t);
      }
    }
  }
};

}  // namespace

void CudnnAttention::forward_packed(cudaStream_t stream, const AttentionArgs& a, char* workspace,
                                    int64_t bytes) {
  const AttentionShape& n = a.shape;
  PackedCall{n, a.documents, workspace, bytes - kRaggedBytes - kAttentionSlack}.each(
      stream, false, [&](const Shape& s, int64_t, std::unordered_map<int64_t, void*> t) {
        t.insert({{kQ, a.qkv.data},
                  {kK, advance(a.qkv, n.q_width())},
                  {kV, advance(a.qkv, n.q_width() + n.kv_width())},
                  {kO, a.out.data},
                  {kStats, a.lse.data}});
        impl_->run(stream, s, t, workspace + kRaggedBytes, bytes - kRaggedBytes);
      });
}

void CudnnAttention::backward_packed(cudaStream_t stream, const AttentionBackwardArgs& a, char* workspace,
                                     int64_t bytes) {
  const AttentionShape& n = a.shape;
  PackedCall{n, a.documents, workspace, bytes - kRaggedBytes - kAttentionSlack}.each(
      stream, true, [&](const Shape& s, int64_t h, std::unordered_map<int64_t, void*> t) {
        const int64_t q = h * n.head_dim, k = n.q_width() + h / n.group() * n.head_dim, v = k + n.kv_width();
        t.insert({{kQ, advance(a.qkv, q)},
                  {kK, advance(a.qkv, k)},
                  {kV, advance(a.qkv, v)},
                  {kO, advance(a.out, q)},
                  {kDO, advance(a.dout, q)},
                  {kStats, advance(a.lse, h)},
                  {kDQ, advance(a.dqkv, q)},
                  {kDK, advance(a.dqkv, k)},
                  {kDV, advance(a.dqkv, v)}});
        impl_->run(stream, s, t, workspace + kRaggedBytes, bytes - kRaggedBytes);
      });
}

}  // namespace megatrain
