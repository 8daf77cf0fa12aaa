#pragma once
// Asynchronous events of adapters, made up by a test.
#include <unistd.h>

#include <map>
#include <vector>

#include "test/fabric/tap.h"
#include "test/support/catch.h"

namespace twinpath::test {

// Asynchronous events made up by the test: each context's event file becomes a pipe of ours.
struct EventFeed {
  static inline std::map<ibv_context*, int> write_ends;
  static inline std::vector<int> others;
  static void on(Fabric& fabric) {
    Tap::on(fabric);
    fabric.verbs.get_async_event = [](ibv_context* c, ibv_async_event* event) {
      return ::read(c->async_fd, event, sizeof *event) == sizeof *event ? 0 : -1;
    };
    for (const Port& port : fabric.ports) {
      if (write_ends.count(port.context) != 0) continue;
      int ends[2];
      REQUIRE(::pipe(ends) == 0);
      others.push_back(::dup(port.context->async_fd));  // its writer must not lose its reader
      REQUIRE(::dup2(ends[0], port.context->async_fd) >= 0);
      ::close(ends[0]);
      write_ends[port.context] = ends[1];
    }
  }
  static void send(ibv_context* context, const ibv_async_event& event) {
    REQUIRE(::write(write_ends.at(context), &event, sizeof event) == sizeof event);
  }
  ~EventFeed() {
    for (auto& [context, fd] : write_ends) ::close(fd);
    for (int fd : others) ::close(fd);
    write_ends.clear();
    others.clear();
  }
};

}  // namespace twinpath::test
