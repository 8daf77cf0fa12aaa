#include "proxy/receive/flush.h"

#include <cstring>

#include "plugin/base/log.h"
#include "plugin/rdma/path.h"

namespace twinpath {

Status FlushQueues::prepare(std::uint32_t wanted, bool all) {
  std::lock_guard hold(making_);
  {
    std::lock_guard seen(hub_->lock);
    if (queues_ != nullptr) return Status::ok;
  }
  std::vector<Rail> rails = rails_;
  std::vector<int> which;
  std::string why;
  for (std::size_t r = 0; r < rails.size(); ++r) {
    if ((wanted >> r & 1) == 0) continue;
    const bool up = devices_->port_active(rails[r].port).value_or(true);
    auto now = devices_->live(rails[r].port, why);
    if (now) rails[r] = Rail::of(rails[r].port, *now);
    if (all || (up && now)) which.push_back(static_cast<int>(r));
  }
  while (!which.empty()) {
    std::size_t failed = 0;
    const Status s = make(rails, which, failed, why);
    if (s == Status::ok) return s;
    if (all || failed >= which.size()) break;
    which.erase(which.begin() + static_cast<std::ptrdiff_t>(failed));
  }
  if (all) TP_WARN("the flush queue cannot connect to itself: %s", why.c_str());
  return Status::system;
}

Status FlushQueues::make(const std::vector<Rail>& rails, const std::vector<int>& which,
                         std::size_t& failed, std::string& why) {
  failed = which.size();
  QueueSettings settings = path_settings(devices_->config(), {});
  settings.send_depth = kFlushSlots;
  settings.retry = {};  // nobody comes again, and there is no peer that might be late
  settings.access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
  std::vector<Rail> used;
  std::vector<HelloRail> self;
  std::vector<int> places(rails.size(), -1);
  QueuePaths paths;
  for (const int r : which) {
    const auto place = static_cast<int>(used.size());
    places[static_cast<std::size_t>(r)] = place;
    paths.queues.push_back({place, place});
    used.push_back(rails[static_cast<std::size_t>(r)]);
    self.push_back(used.back().hello());
  }
  auto sink = RegisteredBuffer::make(devices_->verbs(), used, 64, IBV_ACCESS_LOCAL_WRITE);
  if (!sink) return sink.status();
  paths.regular = static_cast<int>(used.size());
  auto queues = QueueSet::make(hub_, devices_, used, paths, settings);
  if (!queues) return queues.status();
  Status s = (*queues)->init(why);
  if (s == Status::ok) s = (*queues)->raise(self, (*queues)->addresses(), why);
  if (s != Status::ok) {
    failed = static_cast<std::size_t>((*queues)->moving());
    return s;
  }
  std::lock_guard publish(hub_->lock);
  sink_ = std::move(sink).take();
  rails_ = rails;
  places_ = std::move(places);
  queues_ = std::move(queues).take();
  return Status::ok;
}

bool FlushQueues::fits(const std::vector<Rail>& now, std::uint32_t in_use) const {
  for (std::size_t r = 0; r < now.size(); ++r) {
    if ((in_use >> r & 1) == 0) continue;
    if (!serves(static_cast<int>(r)) || rails_[r].gid.index != now[r].gid.index ||
        std::memcmp(rails_[r].gid.gid.raw, now[r].gid.gid.raw, sizeof now[r].gid.gid.raw) != 0)
      return false;
  }
  return true;
}

int FlushQueues::post(int rail, std::uint64_t address, std::uint32_t rkey, std::uint16_t slot,
                      std::uint16_t generation) {
  const int place = places_[static_cast<std::size_t>(rail)];
  ibv_sge sge{sink_->address(), 1, sink_->lkey(place)};
  ibv_send_wr wr{};
  wr.wr_id = encode(WrId{id_.index, id_.epoch, WrKind::flush, slot, generation});
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(queues_->queues()[static_cast<std::size_t>(place)].qp.get(), &wr, &bad);
}

}  // namespace twinpath
