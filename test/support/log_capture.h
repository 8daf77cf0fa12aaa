#pragma once
// Keeps what the code under test logs, so that a test can demand a message, or demand silence.
//
// Threads: messages may come from any thread; one LogCapture may exist at a time (the log sink
// is one per process).
#include <cstdarg>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/log.h"

namespace twinpath::test {

struct LogLine {
  LogLevel level;
  std::string text;
};

class LogCapture {
 public:
  LogCapture();
  // Puts the earlier sink back.  Of a test that fails the lines are printed: they say why.
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  std::vector<LogLine> lines() const;
  std::vector<std::string> warnings() const;
  // Whether some line of that level (or any level) contains `part`.
  bool has(LogLevel level, std::string_view part) const;
  bool has(std::string_view part) const;
  void clear();

 private:
  LogSink previous_;
  int failing_;  // exceptions under way when it began
};

// The sink that logs go to, a LogCapture's if there is one: to be handed to init as NCCL's logger.
// On the test's thread.
LogSink current_sink();
// What a sink was given, as text.
__attribute__((format(printf, 1, 0))) std::string text_of(const char* format, va_list arguments);

}  // namespace twinpath::test
