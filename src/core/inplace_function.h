#pragma once
// defines: InplaceFunction — a move-only callable that never touches the heap, so that enqueuing work
// inside a step allocates nothing.

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace megatrain {

template <class Arg, size_t Capacity = 512>
class InplaceFunction {
 public:
  InplaceFunction() = default;
  template <class F>
  requires(!std::is_same_v<std::decay_t<F>, InplaceFunction>)
      InplaceFunction(F&& f) {  // NOLINT(google-explicit-constructor): mirrors std::function
    using Fn = std::decay_t<F>;
    static_assert(sizeof(Fn) <= Capacity, "closure too large: raise InplaceFunction's capacity");
    static_assert(alignof(Fn) <= alignof(std::max_align_t));
    new (storage_) Fn(std::forward<F>(f));
    call_ = [](void* s, Arg a) { (*static_cast<Fn*>(s))(a); };
    move_ = [](void* to, void* from) {
      if (to) new (to) Fn(std::move(*static_cast<Fn*>(from)));
      static_cast<Fn*>(from)->~Fn();
    };
  }
  InplaceFunction(InplaceFunction&& o) noexcept { take(o); }
  InplaceFunction& operator=(InplaceFunction&& o) noexcept {
    if (this != &o) reset(), take(o);
    return *this;
  }
  ~InplaceFunction() { reset(); }

  void operator()(Arg a) { call_(storage_, a); }
  explicit operator bool() const { return call_ != nullptr; }

 private:
  void reset() {
    if (move_) move_(nullptr, storage_);
    call_ = nullptr, move_ = nullptr;
  }
  void take(InplaceFunction& o) {
    if (o.move_) o.move_(storage_, o.storage_);
    call_ = std::exchange(o.call_, nullptr), move_ = std::exchange(o.move_, nullptr);
  }
  alignas(std::max_align_t) unsigned char storage_[Capacity];
  void (*call_)(void*, Arg) = nullptr;
  void (*move_)(void*, void*) = nullptr;
};

}  // namespace megatrain
