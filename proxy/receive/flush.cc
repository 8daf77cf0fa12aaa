#include "proxy/receive/flush.h"

#include "plugin/base/log.h"
#include "proxy/connect/connection.h"

namespace twinpath {

Status FlushQueues::prepare() {
  std::lock_guard hold(making_);
  {
    std::lock_guard seen(hub_->lock);
    if (queues_ != nullptr) return Status::ok;
  }
  auto sink = RegisteredBuffer::make(devices_->verbs(), rails_, 64, IBV_ACCESS_LOCAL_WRITE);
  if (!sink) return sink.status();
  QueueSettings settings = queue_settings(true, devices_->config(), {});
  settings.send_depth = kFlushSlots;
  settings.recv_depth = 1;
  settings.inline_bytes = 0;
  settings.retry = {};  // nobody comes again, and there is no peer that might be late
  settings.access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
  auto queues = QueueSet::make(hub_, devices_, rails_, static_cast<int>(rails_.size()), settings);
  if (!queues) return queues.status();
  std::vector<HelloRail> self;
  for (const Rail& rail : rails_) self.push_back(rail.hello());
  std::string why;
  Status s = (*queues)->init(why);
  if (s == Status::ok) s = (*queues)->raise(self, (*queues)->addresses(), why);
  if (s != Status::ok) {
    TP_WARN("the flush queue cannot connect to itself: %s", why.c_str());
    return s;
  }
  std::lock_guard publish(hub_->lock);
  sink_ = std::move(sink).take();
  queues_ = std::move(queues).take();
  return Status::ok;
}

void FlushQueues::drop() {
  std::unique_ptr<QueueSet> gone;
  std::lock_guard hold(making_);
  std::lock_guard seen(hub_->lock);
  gone = std::move(queues_);
}

int FlushQueues::post(int rail, std::uint64_t address, std::uint32_t rkey, std::uint16_t slot,
                      std::uint16_t generation) {
  ibv_sge sge{sink_->address(), 1, sink_->lkey(rail)};
  ibv_send_wr wr{};
  wr.wr_id = encode(WrId{id_.index, id_.epoch, WrKind::flush, slot, generation});
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(queues_->queues()[static_cast<std::size_t>(rail)].qp.get(), &wr, &bad);
}

}  // namespace twinpath
