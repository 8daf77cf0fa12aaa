#include "tools/softhca/pci/data_path.h"

#include <cstdio>

#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/mlx5/layout.h"

namespace twinpath::softhca::pci {
namespace {

using mlx5::Field;
using mlx5::get;
using mlx5::Refusal;

// CREATE_MKEY, from the beginning of the command.
constexpr Field in_key(std::uint32_t bit, std::uint32_t width) { return Field{bit, width}.at(16); }
constexpr Field kFree = in_key(1, 1);
constexpr Field kAtomic = in_key(17, 1), kRemoteWrite = in_key(18, 1), kRemoteRead = in_key(19, 1);
constexpr Field kLocalWrite = in_key(20, 1);
constexpr Field kHighMode = in_key(3, 3), kMode = in_key(22, 2);
constexpr Field kLowByte = in_key(56, 8);
constexpr Field kDomain = in_key(104, 24);
constexpr Field kStart = in_key(128, 64), kLength = in_key(192, 64);
constexpr Field kLogPage = in_key(475, 5);
constexpr std::uint64_t kPhysical = 0, kByPages = 1;  // access_mode_1_0
constexpr unsigned kLeastLogPage = 12;

constexpr std::uint32_t kArm = 0x20;
// Doorbells are rung in each of these by turns, where the driver has registers that gather writes.
constexpr std::uint32_t kRegisters[] = {0x800, 0x900, 0xa00, 0xb00};

unsigned access_of(Bytes in) {
  unsigned access = 0;
  if (get(in, kLocalWrite) != 0) access |= IBV_ACCESS_LOCAL_WRITE;
  if (get(in, kRemoteWrite) != 0) access |= IBV_ACCESS_REMOTE_WRITE;
  if (get(in, kRemoteRead) != 0) access |= IBV_ACCESS_REMOTE_READ;
  if (get(in, kAtomic) != 0) access |= IBV_ACCESS_REMOTE_ATOMIC;
  return access;
}

}  // namespace

DataPath::DataPath(const Verbs& verbs, ibv_context* context, const GuestMemory& memory,
                   std::span<std::uint8_t> bar)
    : context_(context), memory_(memory), bar_(bar) {
  around_.verbs = verbs;
  around_.say = [](const char* line) { std::fprintf(stderr, "softhca: %s\n", line); };
  make_execution();
}

DataPath::~DataPath() {
  execution_.reset();
  keys_.clear();  // before their domains
}

// Changes of keys name no domain.
void DataPath::make_execution() {
  execution_ = std::make_unique<mlx5::Execution>(around_);
  (void)add_domain(0);
}

void DataPath::reset() {
  execution_.reset();
  keys_.clear();
  domains_.clear();
  make_execution();
}

bool DataPath::add_domain(std::uint32_t number) {
  ibv_pd* const made = around_.verbs.alloc_pd(context_);
  if (made == nullptr) return false;
  domains_[number] = own(made, around_.verbs.dealloc_pd);
  execution_->know_pd(number, made);
  return true;
}

void DataPath::remove_domain(std::uint32_t number) { domains_.erase(number); }

void DataPath::add_page(std::uint32_t number) {
  std::uint8_t* const page = bar_.data() + std::size_t{number} * kGuestPage;
  std::vector<std::uint64_t*> registers;
  for (const std::uint32_t at : kRegisters)
    registers.push_back(reinterpret_cast<std::uint64_t*>(page + at));
  execution_->know_page(number, std::move(registers),
                        reinterpret_cast<std::uint64_t*>(page + kArm));
}

Refusal DataPath::add_key(Bytes in, std::uint32_t& index) {
  const std::uint64_t mode = get(in, kMode);
  if (get(in, kHighMode) != 0 || (mode != kPhysical && mode != kByPages)) return Refusal::key_mode;
  const auto domain = domains_.find(static_cast<std::uint32_t>(get(in, kDomain)));
  if (domain == domains_.end()) return Refusal::no_pd;
  if (get(in, kFree) != 0) return Refusal::key_mode;
  Key key;
  std::uint64_t start = 0;
  if (mode == kPhysical) {
    const auto all = memory_.low();
    key.region = own(
        around_.verbs.reg_mr_iova2(domain->second.get(), all.data(), all.size(), 0, access_of(in)),
        around_.verbs.dereg_mr);
  } else {
    const std::uint64_t log_page = get(in, kLogPage), length = get(in, kLength);
    if (log_page < kLeastLogPage) return Refusal::key_mode;
    const std::uint64_t page = std::uint64_t{1} << log_page;
    start = get(in, kStart);
    const std::uint64_t first = start & (page - 1);
    // The list is padded.
    std::vector<std::uint64_t> pages = page_list(in, kPageListAt);
    if (length == 0 || length > pages.size() * page || first > pages.size() * page - length)
      return Refusal::key_pages;
    pages.resize((first + length + page - 1) / page);
    auto view = GuestView::map(memory_, pages, page);
    if (!view) return Refusal::no_page;
    key.view = std::make_unique<GuestView>(std::move(*view));
    key.region = own(around_.verbs.reg_mr_iova2(domain->second.get(), key.view->begin() + first,
                                                length, start, access_of(in)),
                     around_.verbs.dereg_mr);
  }
  if (key.region == nullptr) return Refusal::no_number;
  soft::rename_keys(key.region.get(), static_cast<std::uint8_t>(get(in, kLowByte)));
  index = key.region->lkey >> 8;
  keys_[index] = std::move(key);
  return Refusal::none;
}

void DataPath::remove_key(std::uint32_t index) { keys_.erase(index); }

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

void DataPath::set_link(bool up) { (void)soft::set_port_state(context_, 1, up); }

}  // namespace twinpath::softhca::pci
