#include "tools/softhca/pci/function.h"

#include <algorithm>
#include <array>

#include "plugin/fabric/soft/mlx5/layout.h"
#include "tools/softhca/pci/capabilities.h"

namespace twinpath::softhca::pci {
namespace {

using mlx5::get;
using mlx5::Opcode;
using mlx5::Refusal;
using mlx5::set;

// QUERY_PAGES: what is asked for before and after INIT_HCA.  The model needs none; an adapter does,
// and the driver is to be seen giving them.
constexpr std::uint64_t kBoot = 1, kInit = 2;
constexpr std::uint64_t kBootPages = 2, kInitPages = 8;
// MANAGE_PAGES.
constexpr std::uint64_t kCannotGive = 0, kGive = 1;
constexpr mlx5::Field kEntries{96, 32}, kTaken{64, 32};
constexpr std::size_t kList = 16, kAddressBytes = 8;

constexpr std::uint32_t kNullKey = 0x300, kReservedKey = 0x200, kDumpKey = 0x100;

}  // namespace

Function::Function(unsigned number, std::uint32_t doorbell_pages, const GuestMemory& memory,
                   EventQueues& events, DataPath* data)
    : number_(number),
      doorbell_pages_(doorbell_pages),
      memory_(memory),
      events_(events),
      data_(data),
      port_(data == nullptr ? PortNames{} : PortNames{data->lid(), data->port_guid()}) {
  reset();
}

Outcome Function::execute(Bytes in, Answer out) {
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  Outcome outcome;
  const auto opcode = static_cast<Opcode>(get(in, mlx5::kOpcode));
  const Layout* const layout = layout_of(opcode);
  outcome.refusal = layout == nullptr ? Refusal::no_command
                                      : check(*layout, in, out.size(), outcome.reserved_bit);
  if (outcome.refusal == Refusal::none) outcome.refusal = dispatch(opcode, in, out);
  if (outcome.refusal != Refusal::none) mlx5::refuse(outcome.refusal, out);
  return outcome;
}

Refusal Function::dispatch(Opcode opcode, Bytes in, Answer out) {
  if (!offers_.devx && (opcode == Opcode::create_uctx || opcode == Opcode::create_umem))
    return Refusal::no_command;
  switch (opcode) {
    case Opcode::enable_hca:
      reset();  // as what it offers from now on
      enabled_ = true;
      return Refusal::none;
    case Opcode::disable_hca:
      enabled_ = false;
      reset();
      return Refusal::none;
    case Opcode::teardown_hca:
      reset();
      return Refusal::none;
    case Opcode::init_hca:
    case Opcode::set_issi:
    case Opcode::set_driver_version:
      return Refusal::none;
    case Opcode::set_hca_cap:
      return choose(in);
    case Opcode::manage_pages:
      return manage_pages(in, out);
    case Opcode::modify_hca_vport_context:
      return port_.modify_context(in);
    case Opcode::access_reg:
      return port_.access_register(in, out);
    case Opcode::mad_ifc:
      return Port::answer_mad(in, out);
    case Opcode::attach_to_mcg:
    case Opcode::detach_from_mcg:
      return change_group(opcode, in);
    case Opcode::modify_cq:
      return resize_cq(in, out);
    case Opcode::modify_rmp:
    case Opcode::arm_rq:
    case Opcode::arm_xrc_srq:
      return set_limit(opcode, in);
    case Opcode::query_rmp:
    case Opcode::query_srq:
    case Opcode::query_xrc_srq:
      return query_shared(opcode, in, out);
    case Opcode::rst2init_qp:
    case Opcode::init2init_qp:
    case Opcode::init2rtr_qp:
    case Opcode::rtr2rts_qp:
    case Opcode::rts2rts_qp:
    case Opcode::qp_2err:
    case Opcode::qp_2rst:
    case Opcode::query_qp:
      return device_->execute(in, out);
    default:
      break;
  }
  if (const Refusal r = make(opcode, in, out); r != Refusal::no_command) return r;
  if (const Refusal r = destroy(opcode, in); r != Refusal::no_command) return r;
  return query(opcode, in, out);
}

Refusal Function::query(Opcode opcode, Bytes in, Answer out) {
  const std::uint64_t modifier = get(in, mlx5::kOpMod);
  switch (opcode) {
    case Opcode::query_issi:
      // Interface 1 alone, which drivers have asked for since there are two.
      set(out, {864, 32}, 1u << 1);
      return Refusal::none;
    case Opcode::query_pages:
      set(out, kEntries, modifier == kBoot ? kBootPages : modifier == kInit ? kInitPages : 0);
      return Refusal::none;
    case Opcode::query_hca_cap:
      // A kind times 2, plus what is in force: the model has no difference.
      return write_capabilities(static_cast<unsigned>(modifier >> 1), number_, offers_,
                                log_doorbell_page_, out)
                 ? Refusal::none
                 : Refusal::no_modifier;
    case Opcode::query_adapter: {
      constexpr char kBoard[] = "TWINPATH_SOFT";  // vsd_contd_psid
      set(out, mlx5::Field{200, 24}.at(16), 0x0002c9);
      std::copy(std::begin(kBoard), std::end(kBoard), out.begin() + 16 + 240);
      return Refusal::none;
    }
    case Opcode::query_special_contexts:
      set(out, {64, 32}, kDumpKey);
      set(out, {96, 32}, kReservedKey);
      set(out, {128, 32}, kNullKey);
      return Refusal::none;
    case Opcode::query_hca_vport_context:
      return port_.query_context(out);
    case Opcode::query_vport_state:
      return port_.query_state(out);
    case Opcode::query_hca_vport_gid:
      return port_.query_gids(in, out);
    case Opcode::query_hca_vport_pkey:
      return port_.query_pkeys(in, out);
    case Opcode::query_q_counter:
      return Refusal::none;  // nothing that they count is counted here
    default:
      return Refusal::no_command;
  }
}

// What the driver has chosen among what it was told: of it the size of its own pages counts.
Refusal Function::choose(Bytes in) {
  if (static_cast<mlx5::CapabilityKind>(get(in, mlx5::kOpMod) >> 1) !=
      mlx5::CapabilityKind::general)
    return Refusal::none;
  const std::uint64_t log = get(in, kLogDoorbellPage.at(mlx5::kHeaderBytes));
  if (log > kMostLogDoorbellPage) return Refusal::no_field;
  log_doorbell_page_ = static_cast<unsigned>(log);
  return Refusal::none;
}

// As many as lie in one page of the driver's, which maps them together and tells queues any of
// them; named by the first.
Refusal Function::make_doorbell_pages(std::uint32_t& number) {
  const std::uint32_t many = 1u << log_doorbell_page_;
  const std::uint32_t first = (kFirstDoorbellPage + many - 1) >> log_doorbell_page_;
  number = free_number(mlx5::Kind::uar, first, doorbell_pages_ >> log_doorbell_page_, many);
  if (number == 0) return Refusal::no_number;
  for (std::uint32_t i = 1; i < many; ++i) objects_.add({mlx5::Kind::uar, number + i});
  for (std::uint32_t i = 0; i < many; ++i) {
    if (data_ != nullptr) data_->add_page(number + i);
    device_->add_verbs_object({mlx5::Kind::uar, number + i});
  }
  return Refusal::none;
}

Refusal Function::remove_doorbell_pages(std::uint32_t number) {
  const std::uint32_t many = 1u << log_doorbell_page_;
  if (number % many != 0) return Refusal::no_object;
  for (std::uint32_t i = 0; i < many; ++i) {
    if (objects_.in_use({mlx5::Kind::uar, number + i})) return Refusal::in_use;
  }
  for (std::uint32_t i = 0; i < many; ++i) {
    if (const Refusal r = device_->remove({mlx5::Kind::uar, number + i}); r != Refusal::none)
      return r;
    if (data_ != nullptr) data_->remove_page(number + i);
    if (i != 0) objects_.remove({mlx5::Kind::uar, number + i});
  }
  return Refusal::none;
}

Refusal Function::change_group(Opcode opcode, Bytes in) {
  const auto number = static_cast<std::uint32_t>(get(in, mlx5::kNumber));
  if (!objects_.has({mlx5::Kind::qp, number})) return Refusal::no_object;
  mlx5::Execution::Group group;
  std::copy_n(in.begin() + 16, group.size(), group.begin());
  if (data_ == nullptr) return Refusal::none;
  const bool done =
      data_->execution().change_member(number, group, opcode == Opcode::attach_to_mcg);
  return done ? Refusal::none : Refusal::group;
}

Refusal Function::manage_pages(Bytes in, Answer out) {
  const std::uint64_t modifier = get(in, mlx5::kOpMod), entries = get(in, kEntries);
  if (modifier == kCannotGive) return Refusal::none;
  if (modifier == kGive) {
    if (in.size() < kList + kAddressBytes * entries) return Refusal::short_command;
    const std::vector<std::uint64_t> given = page_list(in, kList);
    pages_.insert(pages_.end(), given.begin(),
                  given.begin() + static_cast<std::ptrdiff_t>(entries));
    return Refusal::none;
  }
  const std::size_t fits = (out.size() - kList) / kAddressBytes;
  const std::size_t taken = std::min({static_cast<std::size_t>(entries), fits, pages_.size()});
  set(out, kTaken, taken);
  for (std::size_t i = 0; i < taken; ++i) {
    set(out, {static_cast<std::uint32_t>(8 * (kList + kAddressBytes * i)), 64}, pages_.back());
    pages_.pop_back();
  }
  return Refusal::none;
}

void Function::reset() {
  events_.clear();
  device_.reset();
  if (data_ != nullptr) data_->reset();
  queue_memory_.clear();
  shared_receives_.clear();
  objects_ = {};
  log_doorbell_page_ = 0;
  mlx5::DeviceFacts facts = device_facts(offers_);
  facts.notify = [&events = events_](std::uint32_t eqn, std::uint32_t cqn) {
    events.tell_completion(eqn, cqn);
  };
  facts.overflow = [&events = events_](std::uint32_t cqn) { events.tell_of_overflow(cqn); };
  device_ = std::make_unique<mlx5::Device>(
      facts, [](unsigned, unsigned, std::array<std::uint8_t, 16>&) { return false; },
      device_numbers_, data_ == nullptr ? nullptr : &data_->execution());
  device_->add_verbs_object({mlx5::Kind::pd, 0});  // of queue pairs that change keys
  const std::span<std::uint8_t> all = memory_.all();
  whole_memory_ = device_->add_umem({reinterpret_cast<std::uintptr_t>(all.data()), all.size()});
}

void Function::fail() {
  if (data_ != nullptr) data_->execution().end();
  reset();
  pages_.clear();
}

void Function::set_link(bool up) {
  if (up == port_.up()) return;
  port_.set_up(up);
  if (data_ != nullptr) data_->set_link(up);
  tell_of_port(up ? PortChange::active : PortChange::down);
}

void Function::change_lid() {
  if (data_ == nullptr) return;
  port_.set_lid(data_->change_lid());
  tell_of_port(PortChange::lid);
}

void Function::tell_of_port(PortChange change) {
  std::array<std::uint8_t, 9> data{};
  data[8] = 1 << 4;  // the port's number
  events_.tell(Event::port_change, static_cast<std::uint8_t>(change), data);
}

}  // namespace twinpath::softhca::pci
