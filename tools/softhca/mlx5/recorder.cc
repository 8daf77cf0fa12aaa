#include "tools/softhca/mlx5/recorder.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "plugin/base/options.h"

namespace twinpath::softhca::mlx5 {
namespace {

// The file, or -1.  Global because the calls of libmlx5 have no argument to carry it.  Opened by
// the first call, never closed: calls come from exit handlers too.
int file() {
  static const int fd = [] {
    const std::string path =
        read_config([](const char* name) { return std::getenv(name); }).soft_record;
    if (path.empty()) return -1;
    const int opened =
        open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
    if (opened < 0) {
      std::fprintf(stderr, "soft HCA: TWINPATH_SOFT_RECORD=%s: %s; nothing is recorded\n",
                   path.c_str(), std::strerror(errno));
    }
    return opened;
  }();
  return fd;
}

std::uint64_t next_line() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

Record::Record(std::string_view call, const ibv_context* context) {
  if (file() < 0) return;
  line_ = "{\"call\":\"" + std::string(call) + '"';
  number("pid", static_cast<std::uint64_t>(getpid()));
  number("n", next_line());
  if (context != nullptr) text("device", context->device->name);
}

Record& Record::number(std::string_view key, std::uint64_t value) {
  if (!line_.empty()) line_ += ",\"" + std::string(key) + "\":" + std::to_string(value);
  return *this;
}

Record& Record::text(std::string_view key, std::string_view value) {
  if (!line_.empty()) line_ += ",\"" + std::string(key) + "\":\"" + std::string(value) + '"';
  return *this;
}

Record& Record::bytes(std::string_view key, std::span<const std::uint8_t> value) {
  if (line_.empty()) return *this;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string digits;
  digits.reserve(2 * value.size());
  for (const std::uint8_t byte : value) {
    digits += kDigits[byte >> 4];
    digits += kDigits[byte & 15];
  }
  return text(key, digits);
}

void Record::write(int result) {
  if (line_.empty()) return;
  number("rc", static_cast<std::uint64_t>(result));
  line_ += "}\n";
  const int kept = errno;  // the call's own
  const ssize_t written = ::write(file(), line_.data(), line_.size());
  if (written != static_cast<ssize_t>(line_.size())) {
    static std::atomic_flag said{};
    if (!said.test_and_set()) {
      std::fprintf(stderr, "soft HCA: the record of commands is incomplete: %s\n",
                   written < 0 ? std::strerror(errno) : "the disk is full");
    }
  }
  errno = kept;
}

}  // namespace twinpath::softhca::mlx5
