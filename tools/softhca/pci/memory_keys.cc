#include "tools/softhca/pci/memory_keys.h"

#include <algorithm>

#include "plugin/fabric/soft/extended.h"

namespace twinpath::softhca::pci {
namespace {

using mlx5::Field;
using mlx5::get;
using mlx5::Refusal;
using mlx5::Syndrome;

// The context of a key, in a command (from byte 16) and in a work request.
constexpr std::uint32_t kInCommand = 16;
constexpr Field kFree{1, 1};
constexpr Field kAtomic{17, 1}, kRemoteWrite{18, 1}, kRemoteRead{19, 1}, kLocalWrite{20, 1};
constexpr Field kHighMode{3, 3}, kMode{22, 2};
constexpr Field kLowByte{56, 8}, kDomain{104, 24};
constexpr Field kStart{128, 64}, kLength{192, 64}, kLogPage{475, 5};
constexpr std::uint64_t kPhysical = 0, kByPages = 1;  // access_mode_1_0
constexpr unsigned kLeastLogPage = 12;

// Of a work request, behind its first segment: what is changed, the context, the list of pages.
constexpr Field kFlags{0, 8}, kListSegments{32, 16}, kListFrom{48, 16}, kListFromHigh{128, 32};
constexpr Field kChanged{64, 64};
constexpr std::size_t kContextAt = 48, kListAt = 112;
constexpr std::uint64_t kListInline = 0x80, kHasFrom = 0x10;
constexpr std::uint64_t kSegmentBytes = 16, kPageBytes = 8;
constexpr std::uint64_t kMostPages = std::uint64_t{1} << 20;
// Bits of kChanged.
constexpr std::uint64_t bit(unsigned n) { return std::uint64_t{1} << n; }
constexpr std::uint64_t kSetLength = bit(0), kSetPage = bit(1), kSetStart = bit(6),
                        kSetDomain = bit(7), kSetLowByte = bit(13), kSetQueuePair = bit(14),
                        kSetFree = bit(29);
// Local read, local write, remote read, remote write, atomic: bits of their own in both.
constexpr std::uint64_t kSetAccess = bit(17) | bit(18) | bit(19) | bit(20) | bit(21);
constexpr std::uint64_t kWithoutMeaning = kSetQueuePair | bit(8) | bit(23) | bit(25) | bit(47);
constexpr std::uint64_t kKnown = kSetLength | kSetPage | kSetStart | kSetDomain | kSetLowByte |
                                 kSetFree | kSetAccess | kWithoutMeaning;

constexpr std::uint64_t kPresent = 3;  // of a page's flags: read, written

unsigned access_of(Bytes in, std::uint32_t at) {
  unsigned access = 0;
  if (get(in, kLocalWrite.at(at)) != 0) access |= IBV_ACCESS_LOCAL_WRITE;
  if (get(in, kRemoteWrite.at(at)) != 0) access |= IBV_ACCESS_REMOTE_WRITE;
  if (get(in, kRemoteRead.at(at)) != 0) access |= IBV_ACCESS_REMOTE_READ;
  if (get(in, kAtomic.at(at)) != 0) access |= IBV_ACCESS_REMOTE_ATOMIC;
  return access;
}

}  // namespace

void MemoryKeys::clear() {
  const std::lock_guard hold(lock_);
  keys_.clear();  // before their domains
  domains_.clear();
}

ibv_pd* MemoryKeys::add_domain(std::uint32_t number) {
  ibv_pd* const made = verbs_.alloc_pd(context_);
  if (made == nullptr) return nullptr;
  const std::lock_guard hold(lock_);
  domains_[number] = own(made, verbs_.dealloc_pd);
  return made;
}

void MemoryKeys::remove_domain(std::uint32_t number) {
  const std::lock_guard hold(lock_);
  domains_.erase(number);
}

ibv_pd* MemoryKeys::domain(std::uint32_t number) {
  const std::lock_guard hold(lock_);
  const auto found = domains_.find(number);
  return found == domains_.end() ? nullptr : found->second.get();
}

Refusal MemoryKeys::add(Bytes in, std::uint32_t& index) {
  const std::uint64_t mode = get(in, kMode.at(kInCommand));
  if (get(in, kHighMode.at(kInCommand)) != 0 || (mode != kPhysical && mode != kByPages))
    return Refusal::key_mode;
  const std::lock_guard hold(lock_);
  Key key;
  key.physical = mode == kPhysical;
  key.free = get(in, kFree.at(kInCommand)) != 0;
  key.access = access_of(in, kInCommand);
  key.domain = static_cast<std::uint32_t>(get(in, kDomain.at(kInCommand)));
  key.low = static_cast<std::uint8_t>(get(in, kLowByte.at(kInCommand)));
  const auto domain = domains_.find(key.domain);
  if (domain == domains_.end()) return Refusal::no_pd;
  if (!key.physical) {
    key.start = get(in, kStart.at(kInCommand));
    key.length = get(in, kLength.at(kInCommand));
    key.log_page = get(in, kLogPage.at(kInCommand));
    if (key.log_page < kLeastLogPage && !key.free) return Refusal::key_mode;
    // What a command lists is there.
    for (const std::uint64_t page : page_list(in, kPageListAt))
      key.pages.push_back(page | kPresent);
    if (key.length == 0 && !key.free) return Refusal::key_pages;
  }
  // It has its number from this; what it is comes then.
  key.region = own(verbs_.reg_mr_iova2(domain->second.get(), memory_.low().data(), 1, 0, 0),
                   verbs_.dereg_mr);
  if (key.region == nullptr) return Refusal::no_number;
  if (const Refusal r = apply(key); r != Refusal::none) return r;
  index = key.region->lkey >> 8;
  keys_[index] = std::move(key);
  return Refusal::none;
}

void MemoryKeys::remove(std::uint32_t index) {
  const std::lock_guard hold(lock_);
  keys_.erase(index);
}

// Makes the region what the key says.
Refusal MemoryKeys::apply(Key& key) {
  const auto domain = domains_.find(key.domain);
  if (domain == domains_.end()) return Refusal::no_pd;
  const auto become = [&](void* address, std::uint64_t bytes, std::uint64_t iova) {
    soft::change_region(key.region.get(), domain->second.get(), address, bytes, iova, key.access,
                        key.low);
  };
  if (key.physical) {
    const auto all = memory_.low();
    become(all.data(), key.free ? 0 : all.size(), memory_.first());
    return Refusal::none;
  }
  const std::uint64_t page = std::uint64_t{1} << key.log_page, first = key.start & (page - 1);
  const std::uint64_t room = key.pages.size() * page;
  const bool fits = key.length != 0 && key.length <= room && first <= room - key.length;
  const std::uint64_t needed = fits ? (first + key.length + page - 1) / page : 0;
  std::vector<std::uint64_t> pages;
  for (std::uint64_t i = 0; i < needed && (key.pages[i] & kPresent) != 0; ++i)
    pages.push_back(key.pages[i] & ~std::uint64_t{0xfff});
  if (key.free || (fits && pages.size() < needed)) {
    become(nullptr, 0, 0);
    key.view.reset();
    return Refusal::none;
  }
  if (!fits) return Refusal::key_pages;
  auto view = GuestView::map(memory_, pages, page);
  if (!view) return Refusal::no_page;
  auto mapped = std::make_unique<GuestView>(std::move(*view));
  become(mapped->begin() + first, key.length, key.start);
  key.view = std::move(mapped);  // nothing is under way by the old one
  return Refusal::none;
}

Syndrome MemoryKeys::change(std::uint32_t number, Bytes entry) {
  const std::lock_guard hold(lock_);
  const auto found = keys_.find(number >> 8);
  const std::uint64_t changed = get(entry, kChanged);
  if (found == keys_.end() || entry.size() < kListAt || (changed & ~kKnown) != 0)
    return Syndrome::local_operation;
  Key& key = found->second;
  const auto context = [&](Field field) { return get(entry, field.at(kContextAt)); };
  if ((changed & kSetLength) != 0) key.length = context(kLength);
  if ((changed & kSetPage) != 0) key.log_page = context(kLogPage);
  if ((changed & kSetStart) != 0) key.start = context(kStart);
  if ((changed & kSetDomain) != 0) key.domain = static_cast<std::uint32_t>(context(kDomain));
  if ((changed & kSetLowByte) != 0) key.low = static_cast<std::uint8_t>(context(kLowByte));
  if ((changed & kSetAccess) != 0) key.access = access_of(entry, kContextAt);
  if ((changed & kSetFree) != 0) key.free = context(kFree) != 0;
  const std::uint64_t bytes = get(entry, kListSegments) * kSegmentBytes;
  const std::uint64_t flags = get(entry, kFlags);
  if (bytes != 0 && entry.size() > kListAt) {
    std::vector<std::uint8_t> list(bytes);
    const Bytes rest = entry.subspan(kListAt);
    if ((flags & kListInline) != 0) {
      if (rest.size() < bytes) return Syndrome::local_length;
      std::copy_n(rest.begin(), bytes, list.begin());
    } else if (!read_list(rest, list)) {
      return Syndrome::local_protection;
    }
    const std::uint64_t from = get(entry, kListFromHigh) << 16 | get(entry, kListFrom);
    if (!load(key, list, (flags & kHasFrom) == 0 ? 0 : from * kSegmentBytes / kPageBytes))
      return Syndrome::local_length;
  }
  return apply(key) == Refusal::none ? Syndrome::none : Syndrome::local_operation;
}

// The list lies in memory of the kernel's own key, whose domain is not that of the queue pair.
bool MemoryKeys::read_list(Bytes piece, std::vector<std::uint8_t>& to) {
  constexpr Field kBytes{0, 32}, kKey{32, 32}, kAddress{64, 64};
  const auto lkey = static_cast<std::uint32_t>(get(piece, kKey));
  const auto found = keys_.find(lkey >> 8);
  const std::size_t bytes = std::min<std::size_t>(to.size(), get(piece, kBytes));
  return found != keys_.end() &&
         soft::read_region(found->second.region->pd, get(piece, kAddress), lkey, to.data(), bytes);
}

bool MemoryKeys::load(Key& key, Bytes list, std::uint64_t from) {
  const std::uint64_t count = list.size() / kPageBytes;
  if (from > kMostPages || count > kMostPages - from) return false;
  if (key.pages.size() < from + count) key.pages.resize(from + count);
  for (std::uint64_t i = 0; i < count; ++i)
    key.pages[from + i] = get(list, {static_cast<std::uint32_t>(64 * i), 64});
  return true;
}

}  // namespace twinpath::softhca::pci
