// Execution's queues: made, changed, destroyed.
#include "plugin/fabric/soft/mlx5/device.h"
#include "plugin/fabric/soft/mlx5/execution.h"
#include "plugin/fabric/soft/mlx5/memory_access.h"

namespace twinpath::soft::mlx5 {

Execution::~Execution() {
  {
    std::lock_guard hold(lock_);
    stop_ = true;
  }
  work_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Execution::know_pd(std::uint32_t number, ibv_pd* pd) {
  std::lock_guard hold(lock_);
  pds_[number] = pd;
}

void Execution::know_srq(std::uint32_t number, ibv_srq* srq) {
  std::lock_guard hold(lock_);
  srqs_[number] = {srq, std::nullopt};
}

void Execution::serve_srq(const SharedReceivesFacts& facts, ibv_srq* srq) {
  std::lock_guard hold(lock_);
  srqs_.erase(facts.number);
  srqs_.emplace(facts.number, SharedQueue{srq, SharedReceives(facts, srq)});
}

void Execution::look_at_srq(std::uint32_t number) {
  std::lock_guard hold(lock_);
  auto it = srqs_.find(number);
  if (it != srqs_.end() && it->second.written) (void)it->second.written->look(around_);
}

void Execution::forget_srq(std::uint32_t number) {
  std::lock_guard hold(lock_);
  srqs_.erase(number);
}

void Execution::know_page(std::uint32_t number, std::vector<std::uint64_t*> registers,
                          std::uint64_t* arm) {
  std::lock_guard hold(lock_);
  pages_[number] = {std::move(registers), arm};
}

void Execution::forget_page(std::uint32_t number) {
  std::lock_guard hold(lock_);
  pages_.erase(number);
}

void Execution::make(const CompletionQueueFacts& cq) {
  std::lock_guard hold(lock_);
  cqs_.erase(cq.number);
  cqs_.try_emplace(cq.number, around_, cq);
}

bool Execution::resize(const CompletionQueueFacts& to) {
  std::lock_guard hold(lock_);
  return cqs_.at(to.number).resize(to);
}

std::uint32_t Execution::make(const QueuePairFacts& facts) {
  std::lock_guard hold(lock_);
  auto pd = pds_.find(facts.pd);
  if (pd == pds_.end()) return 0;
  auto srq = srqs_.find(facts.srq);
  const bool shared = srq != srqs_.end();
  auto carrier = std::make_unique<Carrier>(
      around_, pd->second, shared ? srq->second.srq : nullptr,
      shared && srq->second.written ? srq->second.written->entries() : 0, facts);
  const std::uint32_t number = carrier->number();
  if (number == 0) return 0;
  QueuePair& made = qps_[number];
  made.facts = facts;
  made.carrier = std::move(carrier);
  const auto reach = [this](std::uint64_t address) {
    std::uint8_t byte = 0;
    return read_memory(around_, address, &byte, 1);
  };
  made.reachable = facts.service != Service::dynamic && reach(facts.record) &&
                   (facts.send_blocks == 0 || reach(facts.sends));
  for (const std::uint32_t cq : {facts.send_cq, facts.receive_cq}) {
    if (auto it = cqs_.find(cq); it != cqs_.end())
      made.reachable = made.reachable && reach(it->second.facts().address);
  }
  if (!made.reachable && !said_) {
    say("what is given to queue pair 0x%x is not carried out yet: %s", number,
        facts.service != Service::dynamic
            ? "its queues lie in memory that is neither the host's nor a GPU's"
            : "it is a dynamic one (DCI)");
    said_ = true;
  }
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
    (void)pthread_setname_np(thread_.native_handle(), "twinpath-mlx5");
  }
  work_.notify_one();
  return number;
}

bool Execution::change(std::uint32_t qpn, State to, std::span<const std::uint8_t> context) {
  std::lock_guard hold(lock_);
  QueuePair& qp = qps_.at(qpn);
  if (qp.facts.service == Service::reliable && qp.carrier->change(to, context) != 0) return false;
  qp.state = to;
  if (is_datagram(qp.facts.service)) qp.qkey = static_cast<std::uint32_t>(get(context, qp::kQkey));
  if (to == State::error) qp.failed = true;
  if (to == State::reset) {
    ibv_wc stale;
    while (qp.carrier->poll(stale)) {
    }
    qp.pending.clear();
    qp.failed = false;
    qp.rung = qp.fetched = qp.receives_told = qp.receives_posted = 0;
  }
  return true;
}

bool Execution::failed(std::uint32_t qpn) {
  std::lock_guard hold(lock_);
  const QueuePair& qp = qps_.at(qpn);
  // A request of the peer's may have ended it, of which nothing here has completed.
  return qp.failed || (qp.facts.service == Service::reliable && qp.carrier->in_error());
}

void Execution::destroy_cq(std::uint32_t number) {
  std::lock_guard hold(lock_);
  cqs_.erase(number);
}

void Execution::destroy_qp(std::uint32_t number) {
  std::lock_guard hold(lock_);
  qps_.erase(number);
}

}  // namespace twinpath::soft::mlx5
