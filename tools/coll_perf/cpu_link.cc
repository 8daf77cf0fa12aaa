#include "tools/coll_perf/cpu_link.h"

#include <sched.h>

#include <utility>

#include "plugin/base/clock.h"
#include "tools/coll_perf/error.h"

namespace twinpath::coll {
namespace {

void check_net(tools::NetResult result, const std::string& what) {
  if (result == 0) return;
  throw ToolError(kExitFailed, what + ": " + tools::net_result_name(result) +
                                   "; the plugin's warnings above say why");
}

}  // namespace

void Link::check(tools::NetResult result, const char* what) const {
  if (result != 0) check_net(result, strf("%s, %s rank %d", what, sends_ ? "to" : "from", peer_));
}

Link::Link(tools::NetPlugin& net, void* comm, bool sends, int peer, const Regions& regions)
    : net_(&net), comm_(comm), sends_(sends), peer_(peer), regions_(regions) {
  for (std::size_t i = 0; i < kRegions; ++i) {
    check(net_->reg_mr(comm_, regions_[i].data, regions_[i].bytes, tools::kMemoryHost, &memory_[i]),
          "regMr");
  }
}

Link::Link(Link&& other) noexcept
    : net_(other.net_),
      comm_(std::exchange(other.comm_, nullptr)),
      sends_(other.sends_),
      peer_(other.peer_),
      regions_(other.regions_),
      memory_(other.memory_),
      operations_(other.operations_),
      posted_(other.posted_),
      done_(other.done_) {}

Link::~Link() {
  if (comm_ == nullptr) return;
  for (void* memory : memory_) (void)net_->dereg_mr(comm_, memory);
  (void)(sends_ ? net_->close_send(comm_) : net_->close_recv(comm_));
}

bool Link::post(RegionId region, std::size_t offset, std::size_t bytes) {
  if (!has_room()) return false;
  void* data = regions_[region].data + offset;
  void* memory = memory_[region];
  void* request = nullptr;
  if (sends_) {
    check(net_->isend(comm_, data, bytes, 0, memory, &request), "isend");
  } else {
    int tag = 0;
    check(net_->irecv(comm_, 1, &data, &bytes, &tag, &memory, &request), "irecv");
  }
  if (request == nullptr) return false;
  operations_[posted_++ % kDepth] = {request, bytes};
  return true;
}

bool Link::poll() {
  bool any = false;
  while (done_ < posted_) {
    const Operation& oldest = operations_[done_ % kDepth];
    int done = 0;
    int bytes = 0;
    check(net_->test(oldest.request, &done, &bytes), "test");
    if (done == 0) break;
    if (!sends_ && static_cast<std::size_t>(bytes) != oldest.bytes) {
      throw ToolError(kExitFailed, strf("rank %d sent %zu bytes, the plugin reports %d", peer_,
                                        oldest.bytes, bytes));
    }
    ++done_;
    any = true;
  }
  return any;
}

Links connect_links(tools::NetPlugin& net, int device, Group& group, std::span<const int> send_to,
                    std::span<const int> recv_from, const Regions& regions, double timeout_s) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto me = static_cast<std::size_t>(group.rank());
  // Row r: the handles on which rank r listens, by the rank that shall connect.
  std::vector<tools::NetHandle> mine(ranks), all(ranks * ranks);
  std::vector<void*> listeners(recv_from.size()), sends(send_to.size()), recvs(recv_from.size());
  for (std::size_t i = 0; i < recv_from.size(); ++i) {
    check_net(net.listen(device, mine[static_cast<std::size_t>(recv_from[i])], &listeners[i]),
              "listen");
  }
  group.all_gather(mine.data(), ranks * sizeof mine[0], all.data());
  const std::int64_t deadline = now_ns() + static_cast<std::int64_t>(timeout_s * 1e9);
  for (bool missing = true; missing;) {
    missing = false;
    for (std::size_t i = 0; i < sends.size(); ++i) {
      if (sends[i] != nullptr) continue;
      // The plugin keeps the state of the attempt in the handle: always the same buffer.
      tools::NetHandle& handle = all[static_cast<std::size_t>(send_to[i]) * ranks + me];
      check_net(net.connect(device, handle, &sends[i]), strf("connect to rank %d", send_to[i]));
      missing = missing || sends[i] == nullptr;
    }
    for (std::size_t i = 0; i < recvs.size(); ++i) {
      if (recvs[i] != nullptr) continue;
      check_net(net.accept(listeners[i], &recvs[i]), strf("accept of rank %d", recv_from[i]));
      missing = missing || recvs[i] == nullptr;
    }
    if (missing && now_ns() > deadline) {
      throw ToolError(kExitFailed, strf("connections were not made within %g s; raise --timeout, "
                                        "or see the other ranks' messages",
                                        timeout_s));
    }
    // Nobody calls a listener in place of a rank that has died.
    if (missing) group.check_links();
    if (missing) sched_yield();
  }
  for (void* listener : listeners) check_net(net.close_listen(listener), "closeListen");
  Links links;
  for (std::size_t i = 0; i < sends.size(); ++i) {
    links.send.emplace_back(net, sends[i], true, send_to[i], regions);
  }
  for (std::size_t i = 0; i < recvs.size(); ++i) {
    links.recv.emplace_back(net, recvs[i], false, recv_from[i], regions);
  }
  group.barrier();
  return links;
}

}  // namespace twinpath::coll
