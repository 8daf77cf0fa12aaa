#include "plugin/base/log.h"

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>

#include "plugin/base/shared_log.h"
#include "plugin/base/text.h"

namespace twinpath {
namespace {

constexpr const char* kPrefix = "NET/Twinpath: ";

// Used until the host program hands us its logger: what must be acted on is not lost.
void default_sink(LogLevel level, unsigned long, const char*, int, const char* format, ...)
    __attribute__((format(printf, 5, 6)));

void default_sink(LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  if (level != LogLevel::warn) return;
  std::array<char, 2048> text{};
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  (void)std::fprintf(stderr, "%s\n", text.data());
}

// Process-wide because NCCL hands the same function to every communicator; see log.h.
constinit LogState own_state;
constinit std::atomic<LogState*> current_state{&own_state};

}  // namespace

LogState& log_state() { return *current_state.load(std::memory_order_acquire); }
void use_log_of(LogState& host) { current_state.store(&host, std::memory_order_release); }

LogSink set_log_sink(LogSink sink) { return log_state().sink.exchange(sink); }

void log_message(LogLevel level, Subsys subsys, const char* where, int line, const char* format,
                 ...) {
  LogState& state = log_state();
  if (level == LogLevel::warn) state.warnings.fetch_add(1, std::memory_order_relaxed);
  LogSink sink = state.sink.load(std::memory_order_acquire);
  if (sink == nullptr) {
    if (level != LogLevel::warn) return;  // spares the formatting
    sink = &default_sink;
  }
  // Formatted here, because a sink takes "..." and cannot be given a va_list.  A longer message
  // is cut: no allocation, so that "out of memory" can be reported too.
  std::array<char, 1800> text{};
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  // What users and systems wrote stands in messages: a '\r' in it would hide the rest of the line.
  std::array<char, 1800> shown{};
  write_printable(text.data(), shown);
  sink(level, static_cast<unsigned long>(subsys), where, line, "%s%s", kPrefix, shown.data());
}

unsigned long warnings_logged() { return log_state().warnings.load(std::memory_order_relaxed); }

}  // namespace twinpath
