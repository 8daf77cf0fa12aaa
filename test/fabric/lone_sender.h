#pragma once
// The sending end in a process of its own, for tests in which that process ends.
#include <unistd.h>

#include <memory>

#include "test/fabric/world.h"

namespace twinpath::test {

struct LoneSender {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Session> session;
  std::unique_ptr<SendComm> comm;
};

// Connects to a handle of the other process; ends this one with status 2 or 3 where that fails.
inline LoneSender connect_or_exit(const Config& config, HandleArray handle) {
  auto fabric = open_fabric(config);
  if (!fabric) _exit(2);
  LoneSender s;
  s.transport = make_proxy_transport(std::move(fabric).take(), config).take();
  s.session = s.transport->open_session({9, -1}).take();
  while (s.comm == nullptr)
    if (const Status status = s.session->connect(0, handle, s.comm);
        status != Status::ok && status != Status::again)
      _exit(3);
  return s;
}

}  // namespace twinpath::test
