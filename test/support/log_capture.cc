#include "test/support/log_capture.h"

#include <array>
#include <cstdarg>
#include <cstdio>
#include <exception>
#include <mutex>
#include <utility>

namespace twinpath::test {
namespace {

// The sink is a plain function without a context argument, hence process-wide storage.
struct Store {
  std::mutex mutex;
  std::vector<LogLine> lines;
};
Store& store() {
  static Store s;
  return s;
}

__attribute__((format(printf, 5, 6))) void capture(LogLevel level, unsigned long, const char*, int,
                                                   const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::string text = text_of(format, arguments);
  va_end(arguments);
  const std::lock_guard lock(store().mutex);
  store().lines.push_back({level, std::move(text)});
}

}  // namespace

std::string text_of(const char* format, va_list arguments) {
  std::array<char, 4096> text{};
  (void)std::vsnprintf(text.data(), text.size(), format, arguments);
  return text.data();
}

LogCapture::LogCapture() : failing_(std::uncaught_exceptions()) {
  clear();
  previous_ = set_log_sink(&capture);
}

LogCapture::~LogCapture() {
  set_log_sink(previous_);
  // Taken: who counts the process's memory after this counts none of it.
  std::vector<LogLine> lines;
  {
    const std::lock_guard lock(store().mutex);
    lines.swap(store().lines);
  }
  // A failed REQUIRE is an exception.
  if (std::uncaught_exceptions() <= failing_) return;
  for (const LogLine& line : lines)
    if (line.level <= LogLevel::info)
      (void)std::fprintf(stderr, "  logged: %s\n", line.text.c_str());
}

std::vector<LogLine> LogCapture::lines() const {
  const std::lock_guard lock(store().mutex);
  return store().lines;
}

std::vector<std::string> LogCapture::warnings() const {
  std::vector<std::string> out;
  for (LogLine& line : lines()) {
    if (line.level == LogLevel::warn) out.push_back(std::move(line.text));
  }
  return out;
}

bool LogCapture::has(LogLevel level, std::string_view part) const {
  for (const LogLine& line : lines()) {
    if (line.level == level && line.text.find(part) != std::string::npos) return true;
  }
  return false;
}

bool LogCapture::has(std::string_view part) const {
  for (const LogLine& line : lines()) {
    if (line.text.find(part) != std::string::npos) return true;
  }
  return false;
}

void LogCapture::clear() {
  const std::lock_guard lock(store().mutex);
  store().lines.clear();
}

LogSink current_sink() {
  const LogSink sink = set_log_sink(nullptr);
  set_log_sink(sink);
  return sink;
}

}  // namespace twinpath::test
