#include "plugin/fabric/soft/link.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/base/refused.h"

namespace twinpath::soft {
namespace {

struct LocalLink {
  LinkHalf half[2];
  LinkWords words;
};

Result<SharedMemory> new_half() {
  return SharedMemory::create("twinpath-link", sizeof(LinkHalf), Writers::creator);
}

}  // namespace

Result<std::shared_ptr<Link>> Link::create_local() {
  // Fresh pages are zero: a valid, empty link.
  void* p =
      mmap(nullptr, sizeof(LocalLink), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    TP_WARN("soft HCA: cannot map %zu bytes for a connection: %s", sizeof(LocalLink),
            why_no_memory(errno).c_str());
    return Status::no_memory;
  }
  std::shared_ptr<Link> link(new Link(0, 0));
  link->local_ = p;
  auto* local = static_cast<LocalLink*>(p);
  for (std::size_t i : {0u, 1u}) link->seen_[i] = link->written_[i] = &local->half[i];
  link->words_ = &local->words;
  return link;
}

Result<std::shared_ptr<Link>> Link::create_shared(std::size_t own, std::uint64_t number) {
  std::shared_ptr<Link> link(new Link(own, number));
  auto words = SharedMemory::create("twinpath-words", sizeof(LinkWords), Writers::both);
  if (!words) return words.status();
  link->words_memory_ = std::move(words).take();
  link->words_ = link->words_memory_.as<LinkWords>();
  TP_TRY(link->make_half());
  return link;
}

Result<std::shared_ptr<Link>> Link::map_shared(std::size_t own, std::uint64_t number, int half_fd,
                                               int words_fd, std::string& why) {
  std::shared_ptr<Link> link(new Link(own, number));
  auto words = SharedMemory::map(words_fd, sizeof(LinkWords), Writers::both, why);
  if (!words) return words.status();
  link->words_memory_ = std::move(words).take();
  link->words_ = link->words_memory_.as<LinkWords>();
  TP_TRY(link->map_half(half_fd, why));
  return link;
}

Status Link::make_half() {
  auto half = new_half();
  if (!half) return half.status();
  memory_[own_] = std::move(half).take();
  written_[own_] = memory_[own_].as<LinkHalf>();
  return Status::ok;
}

Status Link::map_half(int half_fd, std::string& why) {
  auto half = SharedMemory::map(half_fd, sizeof(LinkHalf), Writers::creator, why);
  if (!half) return half.status();
  memory_[1 - own_] = std::move(half).take();
  seen_[1 - own_] = memory_[1 - own_].as<const LinkHalf>();
  return Status::ok;
}

void Link::close_fds() {
  (void)memory_[own_].take_fd();
  (void)words_memory_.take_fd();
}

Link::~Link() {
  if (local_ != nullptr) munmap(local_, sizeof(LocalLink));
}

}  // namespace twinpath::soft
