#pragma once
// defines: DirectIo, make_direct_io — many pieces between memory and one file at once: io_uring with
// registered buffers, or threads where the system forbids it (containers).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace megatrain {

struct IoPiece {
  char* data = nullptr;
  int64_t offset = 0, bytes = 0;
};

/// Used by one thread at a time. Errors name the file.
class DirectIo {
 public:
  virtual ~DirectIo() = default;
  virtual const char* name() const = 0;
  /// Reads, or writes, all pieces; `before(i)` is called before piece i starts, `after(i)` when it is done,
  /// both by the calling thread. Throws Error at the first failure, when nothing is in flight any more.
  virtual void transfer(bool write, const std::vector<IoPiece>& pieces,
                        const std::function<void(size_t)>& before,
                        const std::function<void(size_t)>& after) = 0;
  /// Memory that transfers will use from now on, page-aligned, until the next call (before it is released);
  /// where the system refuses to register it, it is used as is.
  virtual void register_memory(const std::vector<std::pair<void*, int64_t>>& /*ranges*/) {}
};

/// `fd` outlives it. MEGATRAIN_IO=threads in the environment forbids io_uring.
std::unique_ptr<DirectIo> make_direct_io(int fd, const std::string& path);

}  // namespace megatrain
