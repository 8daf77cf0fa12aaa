#include "tools/softhca/pci/data_path.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "plugin/base/clock.h"
#include "plugin/fabric/soft/masked_atomic.h"
#include "tools/softhca/pci/device_clock.h"

namespace twinpath::softhca::pci {
namespace {

constexpr std::uint32_t kArm = 0x20;
// Four registers of 512 bytes, whose halves are rung by turns.  The kernel's own fast path has the
// last two.
constexpr std::uint32_t kRegisters[] = {0x800, 0x900, 0xa00, 0xb00, 0xc00, 0xd00, 0xe00, 0xf00};

}  // namespace

DataPath::DataPath(const Verbs& verbs, ibv_context* context, const GuestMemory& memory,
                   std::span<std::uint8_t> bar, Subnet& subnet)
    : context_(context), bar_(bar), keys_(around_.verbs, context, memory) {
  around_.verbs = verbs;
  port_ = &subnet.join(lid(), port_guid());
  around_.datagrams = port_;
  around_.read_region = soft::read_region;
  around_.write_region = soft::write_region;
  around_.take_receive = soft::take_receive;
  around_.post_masked_atomic = soft::post_masked_atomic;
  around_.change_key = [this](std::uint32_t key, Bytes entry) { return keys_.change(key, entry); };
  around_.clock = [] { return device_clock(now_ns()); };
  around_.say = [](const char* line) { std::fprintf(stderr, "softhca: %s\n", line); };
  make_execution();
}

DataPath::~DataPath() = default;

// Changes of keys name no domain.
void DataPath::make_execution() {
  execution_ = std::make_unique<mlx5::Execution>(around_);
  (void)add_domain(0);
}

void DataPath::reset() {
  execution_.reset();
  shared_receives_.clear();
  keys_.clear();
  make_execution();
}

bool DataPath::add_domain(std::uint32_t number) {
  ibv_pd* const made = keys_.add_domain(number);
  if (made != nullptr) execution_->know_pd(number, made);
  return made != nullptr;
}

void DataPath::add_page(std::uint32_t number) {
  std::uint8_t* const page = bar_.data() + std::size_t{number} * kGuestPage;
  std::vector<std::uint64_t*> registers;
  for (const std::uint32_t at : kRegisters)
    registers.push_back(reinterpret_cast<std::uint64_t*>(page + at));
  execution_->know_page(number, std::move(registers),
                        reinterpret_cast<std::uint64_t*>(page + kArm));
}

bool DataPath::add_shared_receives(const mlx5::SharedReceivesFacts& facts) {
  constexpr std::uint32_t kMostPieces = 16;  // the software HCA's
  ibv_pd* const domain = keys_.domain(facts.pd);
  if (domain == nullptr) return false;
  ibv_srq_init_attr init{};
  init.attr.max_wr = facts.entries;
  // One place of an entry names the next.
  init.attr.max_sge = std::min(facts.entry_bytes / 16 - 1, kMostPieces);
  auto made = own(soft::create_srq(domain, &init), soft::destroy_srq);
  if (made == nullptr) return false;
  execution_->serve_srq(facts, made.get());
  shared_receives_.insert_or_assign(facts.number, std::move(made));
  return true;
}

void DataPath::remove_shared_receives(std::uint32_t number) {
  execution_->forget_srq(number);
  shared_receives_.erase(number);
}

bool DataPath::set_limit(std::uint32_t number, std::uint32_t limit) {
  execution_->look_at_srq(number);  // else the limit is below what the program has given
  ibv_srq_attr attr{};
  attr.srq_limit = limit;
  return soft::modify_srq(shared_receives_.at(number).get(), &attr, IBV_SRQ_LIMIT) == 0;
}

std::uint32_t DataPath::limit(std::uint32_t number) const {
  ibv_srq_attr attr{};
  return soft::query_srq(shared_receives_.at(number).get(), &attr) == 0 ? attr.srq_limit : 0;
}

std::uint32_t DataPath::number_of(const ibv_srq* srq) const {
  for (const auto& [number, shared] : shared_receives_) {
    if (shared.get() == srq) return number;
  }
  return 0;
}

std::uint16_t DataPath::lid() const {
  ibv_port_attr port{};
  (void)around_.verbs.query_port(context_, 1, &port);
  return port.lid;
}

std::uint64_t DataPath::port_guid() const {
  ibv_gid gid{};
  (void)around_.verbs.query_gid(context_, 1, 0, &gid);
  return __builtin_bswap64(gid.global.interface_id);
}

std::uint16_t DataPath::change_lid() {
  constexpr unsigned kLids = 8;  // from one above a multiple on (soft::set_port_lid)
  const unsigned first = (lid() - 1u) / kLids * kLids + 1;
  const auto next = static_cast<std::uint16_t>(first + (lid() - first + 1) % kLids);
  if (soft::set_port_lid(context_, 1, next) == 0) port_->set_lid(next);
  return lid();
}

void DataPath::set_link(bool up) {
  port_->set_up(up);
  (void)soft::set_port_state(context_, 1, up);
}

void DataPath::lose(soft::PortLoss what) {
  port_->lose(what);
  (void)soft::set_port_loss(context_, 1, what);
}

void DataPath::slow_down(std::uint32_t mbps) { (void)soft::set_port_rate(context_, 1, mbps); }

std::optional<DataPath::Told> DataPath::next_event() {
  pollfd waiting{context_->async_fd, POLLIN, 0};
  ibv_async_event event{};
  if (::poll(&waiting, 1, 0) != 1 || around_.verbs.get_async_event(context_, &event) != 0)
    return std::nullopt;
  Told told;
  const auto of_queue_pair = [&](Event kind) { told = {kind, event.element.qp->qp_num}; };
  switch (event.event_type) {
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      told = {Event::shared_limit, number_of(event.element.srq)};
      break;
    case IBV_EVENT_COMM_EST:
      of_queue_pair(Event::established);
      break;
    case IBV_EVENT_SQ_DRAINED:
      of_queue_pair(Event::drained);
      break;
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      of_queue_pair(Event::last_receive);
      break;
    case IBV_EVENT_QP_FATAL:
      of_queue_pair(Event::broken);
      break;
    case IBV_EVENT_QP_REQ_ERR:
      of_queue_pair(Event::invalid_request);
      break;
    case IBV_EVENT_QP_ACCESS_ERR:
      of_queue_pair(Event::access_violated);
      break;
    default:  // the port's are told by who changes it
      break;
  }
  around_.verbs.ack_async_event(&event);
  return told;
}

}  // namespace twinpath::softhca::pci
