#include "engine/measure.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <thread>

#include "core/error.h"
#include "core/rng.h"
#include "device/arena.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/host_memory.h"
#include "engine/engine.h"
#include "ops/cpu/kernels.h"
#include "optim/adamw.h"

namespace megatrain {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr int64_t kMiB = int64_t{1} << 20;

/// A store of parameters as the optimizer sees it, without a model: one long matrix.
struct AdamBlock {
  AdamBlock(Device& device, int64_t n) : device_(device), n_(n) {
    layout.add("w", {n / 1024, 1024}, Init::normal);
    hi = take<uint16_t>(2), lo = take<uint16_t>(2), m = take<float>(4), v = take<float>(4),
    g = take<float>(4);
    for (int64_t i = 0; i < n; ++i) g[i] = 1e-3f;
  }
  ~AdamBlock() {
    for (auto& [data, bytes] : taken_) device_.release_pinned(data, bytes);
  }
  AdamBlock(const AdamBlock&) = delete;
  AdamBlock& operator=(const AdamBlock&) = delete;
  void update(ThreadPool& pool) const { adamw_update_unit(pool, layout, {hi, lo, m, v}, g, {1e-4}, 3, 1.0); }
  UnitLayout layout;
  uint16_t *hi, *lo;
  float *m, *v, *g;

 private:
  template <class T>
  T* take(int64_t size) {
    taken_.emplace_back(device_.allocate_pinned(n_ * size), n_ * size);
    return static_cast<T*>(taken_.back().first);
  }
  Device& device_;
  int64_t n_;
  std::vector<std::pair<void*, int64_t>> taken_;
};

class Meter {
 public:
  Meter(const DeviceChoice& choice, const MeasureOptions& options)
      : choice_(choice), o_(options), cuda_(choice.kind == DeviceKind::cuda) {
    p_.device = cuda_ ? "cuda" : "cpu";
    p_.device_name = p_.name = choice.name;
    p_.cores = options.threads, p_.source = "measured by megatrain doctor";
    p_.device_memory = choice.usable_memory, p_.host_memory = available_host_memory() / 10 * 9;
    const int64_t room =
        cuda_ ? std::min<int64_t>(choice.usable_memory / 10 * 8, int64_t{12} << 30) : int64_t{1} << 30;
    device_ = make_device(choice, room + 64 * kMiB, options.threads);
    arena_ = std::make_unique<Arena>(*device_, "measurement", room, "free some memory");
    stream_ = device_->new_stream("compute"), up_ = device_->new_stream("up"),
    down_ = device_->new_stream("down");
    type_ = cuda_ ? DType::bf16 : DType::f32;
    base_ = static_cast<char*>(arena_->take("all", room));
    room_ = room;
  }

  MachineProfile run() {
    noise();
    say("link and host memory");
    measure_links();
    say("device copy and AdamW");
    measure_copies();
    workspace();
    say("matrix products");
    measure_products();
    say("attention");
    measure_attention();
    say("memory-bound operations");
    measure_ops();
    say("issuing operations");
    measure_issue();
    if (!o_.disk_directory.empty()) {
      say("disk");
      measure_disk();
    }
    return p_;
  }

 private:
  void say(const char* what) const {
    if (o_.progress) o_.progress(what);
  }
  // Seconds of f on the compute stream: the median of a few, or fewer when they are long.
  double time(const std::function<void()>& f, int most = 7) {
    std::vector<double> t;
    stream_->reserve_stamps(2);
    for (int i = 0; i < most + 1; ++i) {
      stream_->stamp(0);
      f();
      stream_->stamp(1);
      stream_->synchronize();
      const double s = stream_->stamp_seconds(1) - stream_->stamp_seconds(0);
      if (i > 0) t.push_back(s);
      if (i > 0 && s * i > 0.15) break;
    }
    std::sort(t.begin(), t.end());
    return t[t.size() / 2];
  }
  Tensor at(int64_t offset, DType type, std::initializer_list<int64_t> shape) const {
    Tensor t(base_ + offset, type, shape);
    if (offset + t.bytes() > room_) fail("measurement: not enough device memory");
    return t;
  }

  // Random values all over: products of zeros draw less power and run faster than real ones.
  void noise() {
    const int64_t piece = std::min<int64_t>(64 * kMiB, room_);
    std::vector<uint16_t> host(static_cast<size_t>(piece / 2));
    for (size_t i = 0; i < host.size(); i += type_ == DType::f32 ? 2 : 1) {
      const SplitFloat x = split_float(2 * static_cast<float>(random_uniform(1, 2, i)) - 1);
      if (type_ == DType::f32)
        host[i] = x.lo, host[i + 1] = x.hi;
      else
        host[i] = x.hi;
    }
    for (int64_t done = 0; done < room_; done += piece)
      device_->copy_now(base_ + done, host.data(), std::min(piece, room_ - done));
  }

  struct Rates {
    double up = 0, down = 0, host = 0;
  };
  // Bytes a second while all that is asked for runs beside each other for a moment.
  Rates beside(bool up, bool down, const AdamBlock* adam, double seconds = 0.4) {
    const int64_t bytes = cuda_ ? 256 * kMiB : 32 * kMiB;
    void *from = device_->allocate_pinned(bytes), *to = device_->allocate_pinned(bytes);
    std::atomic<bool> stop{false};
    double host_bytes = 0, host_seconds = 0;
    ThreadPool pool(o_.threads);
    std::thread worker;
    if (adam)
      worker = std::thread([&] {
        adam->update(pool);
        const double begin = now();
        do adam->update(pool), host_bytes += 28 * static_cast<double>(adam->layout.numel);
        while (!stop);
        host_seconds = now() - begin;
      });
    const auto mover = [&](Stream& s, void* dst, const void* src, double& rate) {
      double moved = 0;
      const double begin = now();
      while (now() - begin < seconds) {
        for (int i = 0; i < 4; ++i) device_->copy(s, dst, src, bytes);
        s.synchronize();
        moved += 4.0 * static_cast<double>(bytes);
      }
      rate = moved / (now() - begin);
    };
    Rates r;
    std::thread a, b;
    if (up) a = std::thread([&] { mover(*up_, base_, from, r.up); });
    if (down) b = std::thread([&] { mover(*down_, to, base_ + room_ / 2, r.down); });
    if (a.joinable()) a.join();
    if (b.joinable()) b.join();
    if (!up && !down) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    stop = true;
    if (worker.joinable()) worker.join();
    r.host = host_seconds > 0 ? host_bytes / host_seconds : 0;
    device_->release_pinned(from, bytes), device_->release_pinned(to, bytes);
    return r;
  }

  void measure_links() {
    const AdamBlock adam(*device_, cuda_ ? int64_t{1} << 28 : int64_t{1} << 24);
    beside(true, true, nullptr, 0.1);
    p_.link_up = beside(true, false, nullptr).up;
    p_.link_down = beside(false, true, nullptr).down;
    const Rates both = beside(true, true, nullptr);
    p_.link_both = std::min(both.up, both.down);
    p_.adam = beside(false, false, &adam).host;
    const Rates busy = beside(true, true, &adam, 0.8);
    p_.link_busy = std::min(busy.up, busy.down), p_.adam_busy = std::min(busy.host, p_.adam);
    p_.dram = dram();
  }

  double dram() const {
    const int64_t n = cuda_ ? int64_t{1} << 28 : int64_t{1} << 24;
    std::vector<float> a(static_cast<size_t>(n), 1.0f), b(static_cast<size_t>(n), 2.0f);
    ThreadPool pool(o_.threads);
    double best = 0;
    for (int i = 0; i < 4; ++i) {
      const double start = now();
      pool.parallel_ranges(n, 1 << 18, [&](int64_t x, int64_t y) {
        cpu_kernels().axpy(y - x, 0.9f, b.data() + x, a.data() + x);
      });
      best = std::max(best, 12.0 * static_cast<double>(n) / (now() - start));
    }
    return best;
  }

  void measure_copies() {
    const int64_t bytes = room_ / 4;
    const double copy = time([&] { device_->copy(*stream_, base_, base_ + bytes, bytes); });
    p_.device_copy = 2 * static_cast<double>(bytes) / copy;
    const int64_t n = room_ / 32 / 1024 * 1024;
    AdamWArgs a;
    char* at = base_;
    const auto take = [&](int64_t size) {
      char* p = at;
      at += n * size;
      return p;
    };
    a.hi = reinterpret_cast<uint16_t*>(take(2)), a.lo = reinterpret_cast<uint16_t*>(take(2));
    a.m = reinterpret_cast<float*>(take(4)), a.v = reinterpret_cast<float*>(take(4));
    a.gradient = reinterpret_cast<float*>(take(4)), a.count = n, a.step = adamw_step({1e-4}, 3, 1, true);
    p_.device_adam = 28 * static_cast<double>(n) / time([&] { device_->ops().adamw(*stream_, a); });
    noise();
  }

  void workspace() {
    if (!choice_.workspace) return;
    const AttentionShape shape{8, 8192, 16, 16, 128};
    workspace_ = choice_.workspace({shape, DType::bf16, 0, false});
    room_ -= workspace_;
    device_->ops().set_workspace(base_ + room_, workspace_);
  }

  double product(double& flops, int64_t m, int64_t n, int64_t k, bool gradient) {
    flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    const auto padded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    const int64_t a = padded(m * k * size_of(type_)), b = padded(n * k * size_of(type_));
    if (gradient) {  // [k, m]ᵀ x [k, n], added to fp32
      const Tensor x = at(0, type_, {k, m}), y = at(a, type_, {k, n}), c = at(a + b, DType::f32, {m, n});
      return time([&] { device_->ops().gemm(*stream_, {x, y, c, true, false, true, {}}); });
    }
    const Tensor x = at(0, type_, {m, k}), y = at(a, type_, {n, k}), c = at(a + b, type_, {m, n});
    return time([&] { device_->ops().gemm(*stream_, {x, y, c, false, true, false, {}}); });
  }

  void measure_products() {
    p_.gemm_axis = cuda_ ? std::vector<double>{256, 1024, 4096, 16384} : std::vector<double>{64, 256, 1024};
    std::vector<double> rates[2];
    for (const bool gradient : {false, true})
      for (const double m : p_.gemm_axis)
        for (const double n : p_.gemm_axis)
          for (const double k : p_.gemm_axis) {
            double flops = 0;
            const double s = product(flops, static_cast<int64_t>(m), static_cast<int64_t>(n),
                                     static_cast<int64_t>(k), gradient);
            rates[gradient].push_back(flops / s);
            p_.gemm = std::max(p_.gemm, flops / s);
          }
    for (const double r : rates[0]) p_.gemm_share.push_back(r / p_.gemm);
    for (const double r : rates[1]) p_.gradient_share.push_back(r / p_.gemm);
  }

  void measure_attention() {
    p_.attention_axis =
        cuda_ ? std::vector<double>{256, 512, 1024, 2048, 4096, 8192} : std::vector<double>{64, 256, 1024};
    for (const double t : p_.attention_axis)
      for (const int64_t d : {64, 128}) {
        const auto length = static_cast<int64_t>(t);
        const int64_t heads = cuda_ ? 16 : 2, tokens = cuda_ ? 16384 : 1024,
                      batch = std::max<int64_t>(tokens / length, 1), w = heads * d;
        const AttentionShape s{batch, length, heads, heads, d};
        const int64_t n = batch * length;
        int64_t used = 0;
        const auto take = [&](DType type, int64_t columns) {
          const Tensor x = at(used, type, {n, columns});
          used += (x.bytes() + 255) / 256 * 256;
          return x;
        };
        const Tensor qkv = take(type_, 3 * w), out = take(type_, w), dout = take(type_, w),
                     dqkv = take(type_, 3 * w), lse = take(DType::f32, heads),
                     delta = take(DType::f32, heads);
        const double flops = 2.0 * static_cast<double>(n * length * w);
        p_.attention_share.push_back(flops / time([&] {
                                       device_->ops().attention(*stream_, {qkv, out, lse, s, {}});
                                     }) /
                                     p_.gemm);
        p_.attention_backward_share.push_back(
            2.5 * flops / time([&] {
              device_->ops().attention_backward(*stream_, {qkv, out, lse, dout, dqkv, delta, s, {}});
            }) /
            p_.gemm);
      }
  }

  void measure_ops() {
    const int64_t n = cuda_ ? 16384 : 1024, c = cuda_ ? 4096 : 512, e = size_of(type_), row = n * c * e;
    Ops& o = device_->ops();
    const Tensor x = at(0, type_, {n, c}), y = at(row, type_, {n, c}), z = at(2 * row, type_, {n, c}),
                 wide = at(3 * row, type_, {n, 4 * c}), wide2 = at(7 * row, type_, {n, 4 * c});
    const int64_t small = 11 * row;
    const Tensor g = at(small, type_, {c}), mean = at(small + 4 * c, DType::f32, {n}),
                 rstd = at(small + 4 * c + 4 * n, DType::f32, {n}),
                 dg = at(small + 4 * c + 8 * n, DType::f32, {4 * c}),
                 db = at(small + 20 * c + 8 * n, DType::f32, {4 * c});
    const Tensor targets = at(small + 36 * c + 8 * n, DType::i32, {n}),
                 total = at(small + 36 * c + 12 * n, DType::f64, {1});
    const int64_t table_at = small + 36 * c + 16 * n;
    const int64_t v = cuda_ ? 32768 : 2048;
    const Tensor table = at(table_at, type_, {v, c}), dtable = at(table_at + v * c * e, DType::f32, {v, c});
    std::vector<int32_t> ids(static_cast<size_t>(n));
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<int32_t>(
          std::min<double>(static_cast<double>(v - 1), std::pow(v, random_uniform(3, 4, i)) - 1));
    device_->copy_now(targets.data, ids.data(), n * 4);
    Stream& s = *stream_;
    const auto bytes = static_cast<double>(row);
    const auto share = [&](const char* name, double moved, const std::function<void()>& f) {
      p_.op_share[name] = moved / time(f) / p_.device_copy;
    };
    const AttentionShape heads{n / 512, 512, c / 128, c / 128, 128};
    const Tensor qkv(wide.data, type_, {n, 3 * c});
    const std::vector<float> freq(64, 0.01f);
    share("layer_norm", 2 * bytes, [&] { o.layer_norm(s, {x, g, {}, y, {}, rstd, 1e-6f}); });
    share("layer_norm_backward", 4 * bytes, [&] {
      o.layer_norm_backward(s, {x, g, {}, rstd, y, z, dg, {}, true});
    });
    share("residual_add", 3 * bytes, [&] { o.residual_add(s, x, y, z, {}); });
    share("column_sum", 4 * bytes, [&] { o.column_sum(s, wide, dg); });
    share("activation", 8 * bytes, [&] { o.activation(s, Activation::gelu, wide, wide2); });
    share("activation_backward", 12 * bytes,
          [&] { o.activation_backward(s, Activation::gelu, wide, wide2); });
    share("swiglu", 6 * bytes, [&] { o.swiglu(s, wide, Tensor(wide2.data, type_, {n, 2 * c})); });
    share("swiglu_backward", 10 * bytes, [&] {
      o.swiglu_backward(s, wide, Tensor(wide2.data, type_, {n, 2 * c}));
    });
    share("rope", 4 * bytes, [&] { o.rope(s, {qkv, qkv, {}, {}, {}, heads, freq.data()}); });
    share("rope_backward_norms", 6 * bytes, [&] {
      o.rope_backward(s, {Tensor(wide2.data, type_, {n, 3 * c}), qkv, {}, g, g, dg, db, heads, freq.data()});
    });
    share("embedding", 2 * bytes, [&] { o.embedding(s, {targets, table, {}, y, 512, {}, {}}); });
    share("embedding_backward", 2 * bytes, [&] {
      o.embedding_backward(s, {targets, x, dtable, {}, 512, {}});
    });
    const int64_t rows = n / 8;
    const Tensor logits(wide.data, type_, {rows, v});
    share("cross_entropy", 2 * static_cast<double>(logits.bytes()), [&] {
      o.cross_entropy(s, {logits, targets.rows(0, rows), mean.rows(0, rows), 1, true, v});
    });
    share("sum", static_cast<double>(dtable.bytes()), [&] { o.sum(s, dtable, total, true); });
    share("fill", static_cast<double>(dtable.bytes()),
          [&] { o.fill_bytes(s, dtable.data, 0, dtable.bytes()); });
    p_.op_share["other"] = 0.7;
  }

  // A model so small that issuing its work is all that takes time, with few and with many micro-batches.
  void measure_issue() {
    ModelSpec spec;
    spec.vocab_size = 64, spec.hidden_size = 64, spec.num_layers = 4, spec.num_heads = 1,
    spec.intermediate_size = 64, spec.max_position_embeddings = 128;
    const auto model = make_model(spec);
    const auto seconds = [&](int64_t micros) {
      StepPlan plan;
      plan.batch = micros, plan.seq_len = 128, plan.micro_batch = 1, plan.compute = type_;
      plan.workspace = choice_.workspace;
      const auto device = make_device(choice_, int64_t{2} << 30, o_.threads);
      StateStore store(*device, *model, plan.store_options());
      ThreadPool pool(1);
      store.initialize(1, pool);
      Engine::Options options;
      options.host_threads = o_.threads, options.check_schedule = false;
      Engine engine(*device, *model, store, plan, options);
      const std::vector<int32_t> ids(static_cast<size_t>(plan.batch * plan.seq_len), 1);
      StepSettings settings;
      settings.max_gradient_norm = 1;
      double best = 1e9;
      for (int i = 0; i < 6; ++i) {
        const double start = now();
        engine.train_step(ids.data(), ids.data(), settings);
        if (i > 1) best = std::min(best, now() - start);
      }
      return best;
    };
    // Per micro-batch and step: 4 blocks twice, head and embedding: 11 compute tasks of some 110 operations,
    // and 2 copies; an operation is taken to cost a third of a task's waits, stamps and events.
    constexpr double kTasks = 13, kOps = 110, kFixedTasks = 50;
    const double one = seconds(1), many = seconds(17), each = (many - one) / 16;
    p_.op_seconds = each / (kOps + 3 * kTasks), p_.task_seconds = 3 * p_.op_seconds;
    p_.step_seconds = std::max(1e-4, one - each - kFixedTasks * p_.task_seconds);
  }

  void measure_disk() {
    namespace fs = std::filesystem;
    fs::create_directories(o_.disk_directory);
    p_.disk_free = static_cast<int64_t>(fs::space(o_.disk_directory).available);
    const int64_t bytes = std::min(o_.disk_bytes, p_.disk_free / 4) / StateFile::kPiece * StateFile::kPiece;
    if (bytes == 0) return;
    const int64_t half = bytes / 2;
    StateFile file(o_.disk_directory + "/doctor-" + std::to_string(::getpid()) + ".bin", bytes);
    void *a = device_->allocate_pinned(half), *b = device_->allocate_pinned(half);
    for (int64_t i = 0; i < half / 4; ++i)
      static_cast<uint32_t*>(a)[i] = random_u32(7, 8, static_cast<uint64_t>(i));
    file.register_memory({{a, half}, {b, half}});
    const auto rate = [&](double n, auto f) {
      const double start = now();
      f();
      return n / (now() - start);
    };
    const auto n = static_cast<double>(half);
    p_.disk_write = rate(2 * n, [&] { file.write_block(0, a, half), file.write_block(half, a, half); });
    p_.disk_read = rate(2 * n, [&] { file.read_block(0, b, half), file.read_block(half, b, half); });
    double both[2] = {0, 0};
    std::thread reader([&] { both[0] = rate(n, [&] { file.read_block(0, b, half); }); });
    both[1] = rate(n, [&] { file.write_block(half, a, half); });
    reader.join();
    p_.disk_both = std::min(both[0], both[1]);
    device_->release_pinned(a, half), device_->release_pinned(b, half);
  }

  const DeviceChoice& choice_;
  const MeasureOptions& o_;
  bool cuda_;
  MachineProfile p_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Stream> stream_, up_, down_;
  DType type_ = DType::f32;
  char* base_ = nullptr;
  int64_t room_ = 0, workspace_ = 0;
};

}  // namespace

MachineProfile measure_machine(const DeviceChoice& choice, const MeasureOptions& options) {
  return Meter(choice, options).run();
}

}  // namespace megatrain
