#pragma once
// What the upper seams of GIN and RMA (gin.h, rma/rma.h) have in common: ranks listen, connect to
// be a team, and register windows.
//
// Collective calls (connect, create_context, register_window) are made by every rank of the team
// in the same order and may block until the slowest has come, at most for the connection time
// limit; then they fail, naming the rank that did not answer.  All other calls never wait for a
// peer.
//
// Threads: see the two.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "plugin/base/limits.h"
#include "plugin/base/status.h"
#include "plugin/transport.h"

namespace twinpath::gda {

class OneSidedListener {
 public:
  virtual ~OneSidedListener() = default;
};

// What a caller says of memory that it registers.
struct WindowTraits {
  bool strict = false;       // never with relaxed ordering
  bool never_reset = false;  // nobody but signals writes its words of signals
};

template <class Window_, class Context_, class Settings_>
class OneSidedComm {
 public:
  using Window = Window_;
  using Context = Context_;
  using Settings = Settings_;
  // Contexts go first.  Never waits for a peer.
  virtual ~OneSidedComm() = default;
  virtual Result<std::unique_ptr<Context>> create_context(const Settings& settings) = 0;
  // The comm's own, until it is deregistered.  dmabuf_fd -1: none.
  virtual Result<Window*> register_window(void* data, std::size_t bytes, MemoryType type,
                                          std::uint64_t dmabuf_offset, int dmabuf_fd,
                                          const WindowTraits& traits) = 0;
  virtual Status deregister_window(Window* window) = 0;
};

template <class Comm>
class OneSidedTransport {
 public:
  virtual ~OneSidedTransport() = default;
  virtual Result<std::unique_ptr<OneSidedListener>> listen(
      int device, std::span<std::uint8_t, kHandleBytes> handle) = 0;
  // Collective.  handles[r] is the one that rank r's listen filled; the own rank is included.
  virtual Result<std::unique_ptr<Comm>> connect(
      std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank,
      OneSidedListener& listener, const CommSettings& settings) = 0;
};

}  // namespace twinpath::gda
