#pragma once
// Questions of the program to its copy process, and the answers: one fixed-size message each over a
// socket that only the two hold, with one descriptor at most.
//
// Threads: one at a time.
#include <cstdint>
#include <string>

#include "plugin/base/owned.h"
#include "plugin/base/status.h"
#include "plugin/gpu/engine.h"
#include "plugin/gpu/process/rings.h"

namespace twinpath::gpu::process {

// Where the copy process finds the socket.
inline constexpr int kSocket = 3;
// Its option that keeps it on the processors that its program is bound to.
inline constexpr char kStayOption[] = "--stay";

enum class Ask : std::uint32_t { open_gpu = 1, import = 2, forget = 3 };
struct Question {
  std::uint32_t layout = 0;  // kLayout
  Ask what{};
  std::uint64_t id = 0;             // import, forget: of the allocation, chosen by the program
  GpuUuid gpu{};                    // open_gpu (the descriptor: SharedMemory for Rings), import
  ExportedAllocation::Kind kind{};  // import; posix_fd: the descriptor
  std::uint64_t bytes = 0;
  std::uint8_t ipc[64] = {};
};

enum class Tell : std::uint32_t { ready = 1, opened = 2, imported = 3, log = 4 };
struct Answer {
  std::uint32_t layout = 0;  // kLayout
  Tell what{};
  Status status = Status::ok;
  std::int32_t number = 0;    // ready: process id; opened, imported: ordinal there; log: LogLevel
  std::uint64_t address = 0;  // imported: there
  char text[480] = {};        // log; ready: why not
};

// Both sides must be of one build: sizes of what they share go into it.
inline constexpr std::uint32_t kLayout =
    0x54500000u ^ static_cast<std::uint32_t>(sizeof(Question) + (sizeof(Answer) << 8)) ^
    static_cast<std::uint32_t>(kSharedBytes);

// False: the other end is gone, or does not read.
bool send_message(int socket, const void* message, std::size_t bytes, int fd, bool wait = true);
// ok, again (nothing is there, or came within the socket's time limit), closed.  A message of
// another size is `closed`.
Status receive_message(int socket, void* message, std::size_t bytes, UniqueFd* fd, bool wait);

}  // namespace twinpath::gpu::process
