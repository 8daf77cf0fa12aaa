#include "tools/softhca/pci/guest_view.h"

#include <sys/mman.h>

#include <utility>

namespace twinpath::softhca::pci {

GuestView::~GuestView() {
  if (mapped_) (void)munmap(begin_, bytes_);
}

GuestView::GuestView(GuestView&& o) noexcept
    : begin_(o.begin_), bytes_(o.bytes_), mapped_(std::exchange(o.mapped_, false)) {}

GuestView& GuestView::operator=(GuestView&& o) noexcept {
  std::swap(begin_, o.begin_);
  std::swap(bytes_, o.bytes_);
  std::swap(mapped_, o.mapped_);
  return *this;
}

std::optional<GuestView> GuestView::map(const GuestMemory& memory,
                                        const std::vector<std::uint64_t>& pages,
                                        std::uint64_t page_bytes) {
  if (pages.empty()) return std::nullopt;
  bool in_order = true;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (memory.at(pages[i], page_bytes) == nullptr) return std::nullopt;
    in_order = in_order && pages[i] == pages[0] + i * page_bytes;
  }
  const std::uint64_t bytes = pages.size() * page_bytes;
  // The hole below 4 GiB is none in the file.
  if (in_order && memory.at(pages[0], bytes) != nullptr)
    return GuestView(memory.at(pages[0], bytes), bytes, false);
  void* const room =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return std::nullopt;
  GuestView view(static_cast<std::uint8_t*>(room), bytes, true);
  // One mapping for each run: there are not many to be had.
  for (std::size_t i = 0, run = 0; i < pages.size(); i = run) {
    for (run = i + 1; run < pages.size() && pages[run] == pages[run - 1] + page_bytes;) ++run;
    const std::uint64_t offset = memory.offset_of(memory.at(pages[i], page_bytes));
    if (mmap(view.begin_ + i * page_bytes, (run - i) * page_bytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, memory.file(), static_cast<off_t>(offset)) == MAP_FAILED)
      return std::nullopt;
  }
  return view;
}

}  // namespace twinpath::softhca::pci
