// See key_table.h.
#include "gda/served/front/key_table.h"

#include <utility>

namespace twinpath::gda {

// Never changed once it is in the table.
struct KeyTable::Window {
  std::uint32_t key = 0;
  std::uint32_t rights = 0;
  KeyedMemory local;
  std::vector<KeyedMemory> remote;
};

namespace {

bool locate(const KeyedMemory& memory, std::uint64_t offset, std::uint64_t bytes, Located& out) {
  if (offset > memory.bytes || bytes > memory.bytes - offset) return false;
  out = {memory.address + offset, memory.fabric_key, memory.second_key, memory.gpu,
         memory.never_reset};
  return true;
}

}  // namespace

KeyTable::KeyTable(int ranks)
    : ranks_(ranks),
      windows_(std::make_unique<std::atomic<Window*>[]>(kMaxWindows)),
      tags_(kMaxWindows, 0) {}

KeyTable::~KeyTable() = default;

Result<std::uint32_t> KeyTable::add(const KeyedMemory& local, std::span<const KeyedMemory> remote,
                                    std::uint32_t rights) {
  if (remote.size() != static_cast<std::size_t>(ranks_)) return Status::bad_argument;
  // Round robin, so that a number comes back as late as possible.  Number 0 is left out: key 0 is
  // what a kernel reads from memory nobody filled.
  for (std::size_t tries = 0; tries < kMaxWindows; ++tries) {
    const std::size_t number = next_;
    next_ = next_ + 1 == kMaxWindows ? 1 : next_ + 1;
    if (windows_[number].load(std::memory_order_relaxed) != nullptr) continue;
    auto window = std::make_unique<Window>();
    window->key = static_cast<std::uint32_t>(number << 8) | tags_[number]++;
    window->rights = rights;
    window->local = local;
    window->remote.assign(remote.begin(), remote.end());
    kept_.push_back(std::move(window));
    // Partner: the acquire in find().
    windows_[number].store(kept_.back().get(), std::memory_order_release);
    ++present_;
    return kept_.back()->key;
  }
  return Status::no_memory;
}

void KeyTable::remove(std::uint32_t key) {
  if (find(key) == nullptr) return;
  windows_[key >> 8].store(nullptr, std::memory_order_release);
  --present_;
}

const KeyTable::Window* KeyTable::find(std::uint32_t key) const {
  if (key >> 8 >= kMaxWindows) return nullptr;
  const Window* window = windows_[key >> 8].load(std::memory_order_acquire);
  return window != nullptr && window->key == key ? window : nullptr;
}

bool KeyTable::local(std::uint32_t key, std::uint64_t offset, std::uint64_t bytes,
                     std::uint32_t right, Located& out) const {
  const Window* window = find(key);
  return window != nullptr && (window->rights & right) == right &&
         locate(window->local, offset, bytes, out);
}

bool KeyTable::remote(std::uint32_t key, int rank, std::uint64_t offset, std::uint64_t bytes,
                      std::uint32_t right, Located& out) const {
  const Window* window = find(key);
  return window != nullptr && rank >= 0 && rank < ranks_ && (window->rights & right) == right &&
         locate(window->remote[static_cast<std::size_t>(rank)], offset, bytes, out);
}

}  // namespace twinpath::gda
