#pragma once
// Logging through a sink that the host program hands us (NCCL's logger, stderr in tools,
// a capture in tests).  Levels and subsystem bits have NCCL's numbering so that the sink
// can be NCCL's function as it is.
//
// Volume rule: warn = something the user must act on (object, cause, remedy in one line);
// info = one line per device, connection or decision; trace = per special flow.  Nothing
// on the data path logs.
//
// Threads: any.  The sink pointer is process-wide: NCCL gives the same function to every
// communicator.
namespace twinpath {

enum class LogLevel : int { none = 0, version = 1, warn = 2, info = 3, abort = 4, trace = 5 };

// NCCL_DEBUG_SUBSYS bits (nccl_common.h, 2.17 to 2.30).
enum class Subsys : unsigned long {
  init = 0x1,
  net = 0x10,
  graph = 0x20,
  env = 0x80,
  reg = 0x2000,
  // Warnings, as NCCL's own: what the user must act on is shown whatever NCCL_DEBUG_SUBSYS says,
  // which without it leaves NET out.
  all = ~0ul
};

// Has the shape of ncclDebugLogger_t; `where` is a function name.
using LogSink = void (*)(LogLevel level, unsigned long subsys, const char* where, int line,
                         const char* format, ...);

// Null: messages go to stderr at warn level only.  Returns the previous sink.
LogSink set_log_sink(LogSink sink);

void log_message(LogLevel level, Subsys subsys, const char* where, int line, const char* format,
                 ...) __attribute__((format(printf, 5, 6)));

// Counts of messages by level since start, for tests ("no unexpected warning").
unsigned long warnings_logged();

}  // namespace twinpath

// Every line is prefixed "NET/Twinpath: ".
#define TP_WARN(...)                                                                               \
  ::twinpath::log_message(::twinpath::LogLevel::warn, ::twinpath::Subsys::all, __func__, __LINE__, \
                          __VA_ARGS__)
#define TP_INFO(subsys, ...)                                                                \
  ::twinpath::log_message(::twinpath::LogLevel::info, ::twinpath::Subsys::subsys, __func__, \
                          __LINE__, __VA_ARGS__)
#define TP_TRACE(subsys, ...)                                                                \
  ::twinpath::log_message(::twinpath::LogLevel::trace, ::twinpath::Subsys::subsys, __func__, \
                          __LINE__, __VA_ARGS__)
