#include "engine/trace.h"

#include <fmt/format.h>

#include "io/file.h"

namespace megatrain {

void TraceFile::add(const Schedule& s, const Timeline& t, const std::string& label) {
  for (size_t i = 0; i < s.tasks.size(); ++i) {
    const Task& task = s.tasks[i];
    const double begin = (offset_ + t.spans[i].begin) * 1e6,
                 length = (t.spans[i].end - t.spans[i].begin) * 1e6;
    std::string name = name_of(task.kind);
    if (task.unit >= 0) name += fmt::format(" u{}", task.unit);
    if (task.micro >= 0) name += fmt::format(" m{}", task.micro);
    events_ += fmt::format(
        ",\n{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}}"
        "}",
        name, label, static_cast<int>(task.lane) + 1, begin, length);
  }
  offset_ += t.seconds;
  ++steps_;
}

void TraceFile::write(const std::string& path) const {
  std::string out =
      "{\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":"
      "\"megatrain\"}}";
  for (int lane = 0; lane < kLanes; ++lane)
    out += fmt::format(
        ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":{},\"args\":{{\"name\":\"{}\"}}}}",
        lane + 1, name_of(static_cast<Lane>(lane)));
  write_file_atomically(path, out + events_ + "\n]}\n");
}

}  // namespace megatrain
