// A worker's main function, and the single-thread mode for counting instructions.
#include <unistd.h>

#include <cstdio>

#include "plugin/base/clock.h"
#include "tools/common/failure.h"
#include "tools/net_perf/stream.h"
#include "tools/net_perf/tests.h"

namespace twinpath::tools {
namespace {

void run_test(Endpoint& e) {
  if (e.rank == 0) {
    nlohmann::json device{{"name", e.props.name},
                          {"pci_path", e.props.pci_path},
                          {"speed_mbps", e.props.speed_mbps},
                          {"max_recvs", e.props.max_recvs}};
    e.reporter.result({{"plugin",
                        {{"path", e.options.plugin},
                         {"name", e.plugin->name()},
                         {"abi", e.plugin->abi()},
                         {"device", std::move(device)},
                         {"gpu", e.gpu ? e.gpu->gpu_name() : ""}}}});
  }
  switch (e.options.test) {
    case Test::latency:
      return run_latency(e);
    case Test::conns:
      return run_connections(e);
    default:
      return run_streams(e);
  }
}

}  // namespace

void worker_main(const Options& options, int rank, Channel control, Channel peer) {
  Reporter reporter(std::move(control));
  try {
    {
      Endpoint endpoint(options, rank, reporter, peer);
      run_test(endpoint);
      endpoint.pair_barrier();  // neither closes while the other still works
      reporter.phase("close");
    }
    reporter.done();
  } catch (const std::exception& e) {
    try {
      reporter.error(e.what());
    } catch (const Failure&) {
      std::fprintf(stderr, "net_perf worker %d: %s\n", rank, e.what());  // the parent is gone
    }
  }
}

int run_single_thread(const Options& options) {
  auto [control_mine, control_parent] = Channel::pair();
  auto [a, b] = Channel::pair();
  Reporter reporter(std::move(control_mine));
  try {
    // Both ends in one endpoint: what it sends on one channel it receives on the other.
    Endpoint e(options, 0, reporter, a);
    reporter.phase("connect");
    NetHandle handle{};
    void *listener = nullptr, *send = nullptr, *recv = nullptr;
    e.check(e.plugin->listen(e.device, handle, &listener), "listen");
    while (send == nullptr || recv == nullptr) {
      if (send == nullptr) e.check(e.plugin->connect(e.device, handle, &send), "connect");
      if (recv == nullptr) e.check(e.plugin->accept(listener, &recv), "accept");
      e.idle();
    }
    e.check(e.plugin->close_listen(listener), "closeListen");
    e.sends = {send};
    e.receives = {recv};
    Shape shape;
    shape.size = options.sizes[0];
    shape.group = options.group;
    shape.window = options.window_given ? options.window : 1;
    Buffer out(shape.buffer_bytes(), nullptr, false), in(shape.buffer_bytes(), nullptr, false);
    const auto out_memory = e.register_on(e.sends, out), in_memory = e.register_on(e.receives, in);
    SendStream sender(e, shape, out, out_memory);
    RecvStream receiver(e, shape, in, in_memory);
    const std::uint64_t groups =
        iterations(options, shape.size) / static_cast<std::size_t>(options.group);
    reporter.phase("move");
    const auto move = [&](std::uint64_t n, Check check) {
      sender.start(n, check);
      receiver.start(n, check);
      while (!sender.done() || !receiver.done()) {
        bool moved = receiver.step();
        moved = sender.step() || moved;
        if (!moved) e.idle();
      }
    };
    if (options.verify) move(8, Check::full);
    move(groups, Check::none);
    if (receiver.wrong() != 0) throw Failure(receiver.first_wrong());
    e.deregister(e.sends, out_memory);
    e.deregister(e.receives, in_memory);
    std::printf(
        "moved %llu messages of %zu bytes in one thread\n",
        static_cast<unsigned long long>(groups) * static_cast<unsigned long long>(options.group),
        shape.size);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "net_perf: %s\n", e.what());
    return 1;
  }
  return 0;
}

}  // namespace twinpath::tools
