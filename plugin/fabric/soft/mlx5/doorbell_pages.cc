#include "plugin/fabric/soft/mlx5/doorbell_pages.h"

#include <sys/mman.h>

#include <cerrno>

#include "plugin/base/page_size.h"

namespace twinpath::soft::mlx5 {
namespace {

constexpr std::size_t kFirstRegister = 0x800;   // in its page
constexpr std::uint32_t kDedicated = 1u << 31;  // not in every rdma-core's headers

}  // namespace

// Ordinary memory, where an adapter has registers: the device finds the last word that was stored.
struct DoorbellPages::Page {
  Page() {
    void* const mapped =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    address = mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
  }
  ~Page() {
    if (address != nullptr) munmap(address, bytes);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  const std::size_t bytes = page_size();
  char* address = nullptr;
};

struct DoorbellPages::Register : mlx5dv_devx_uar {
  ibv_context* context = nullptr;
  std::shared_ptr<void> adornment;
  Free* home = nullptr;  // null: everybody's
};

DoorbellPages::DoorbellPages(const Surroundings& around, ibv_context* context, Device& device,
                             Execution& execution)
    : around_(around), context_(context), device_(device), execution_(execution) {}
DoorbellPages::~DoorbellPages() = default;

bool DoorbellPages::add_page(Free& free, std::size_t registers, std::size_t stride) {
  auto page = std::make_shared<Page>();
  if (page->address == nullptr) return false;
  const std::uint32_t number = device_.add_uar();
  std::vector<std::uint64_t*> words;
  for (std::size_t i = 0; i < registers; ++i) {
    Register& made = registers_.emplace_back();
    made.base_addr = page->address;
    made.reg_addr = page->address + kFirstRegister + i * stride;
    made.page_id = number;
    made.context = context_;
    if (around_.adorn_register != nullptr) made.adornment = around_.adorn_register(made.reg_addr);
    made.home = &free;
    free.push_back(&made);
    words.push_back(static_cast<std::uint64_t*>(made.reg_addr));
  }
  pages_.push_back(std::move(page));
  execution_.know_page(number, std::move(words));
  return true;
}

DoorbellPages::Register* DoorbellPages::from(Free& free, std::size_t registers,
                                             std::size_t stride) {
  if (free.empty() && !add_page(free, registers, stride)) {
    errno = ENOMEM;
    return nullptr;
  }
  Register* const taken = free.front();
  free.pop_front();
  return taken;
}

DoorbellPages::Register* DoorbellPages::shared() {
  if (shared_ == nullptr) shared_ = from(shared_page_, 1, 0);
  if (shared_ != nullptr) shared_->home = nullptr;
  return shared_;
}

mlx5dv_devx_uar* DoorbellPages::take(std::uint32_t type) {
  std::lock_guard hold(lock_);
  if (type == MLX5DV_UAR_ALLOC_TYPE_NC) return shared();
  if (type == MLX5DV_UAR_ALLOC_TYPE_BF) return from(gathering_, 2, 0x200);
  if (type == kDedicated && device_.variant().dedicated_pages) return from(dedicated_, 4, 0x100);
  errno = EOPNOTSUPP;
  return nullptr;
}

void DoorbellPages::give_back(mlx5dv_devx_uar* given) {
  auto* const back = static_cast<Register*>(given);
  std::lock_guard hold(lock_);
  if (back->home != nullptr) back->home->push_back(back);
}

ibv_context* DoorbellPages::context_of(const mlx5dv_devx_uar& uar) {
  return static_cast<const Register&>(uar).context;
}
bool DoorbellPages::adorned(const mlx5dv_devx_uar& uar) {
  return static_cast<const Register&>(uar).adornment != nullptr;
}

}  // namespace twinpath::soft::mlx5
