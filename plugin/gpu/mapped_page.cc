#include "plugin/gpu/mapped_page.h"

#include <map>
#include <mutex>

#include "plugin/base/page_size.h"

namespace twinpath::gpu {
namespace {

constexpr unsigned kPortable = 1, kDeviceMap = 2, kIoMemory = 4;
constexpr cuda::Result kAlreadyRegistered = 712;

// CUDA knows mappings by process, and so does this.
class Mappings {
 public:
  static Mappings& of_process() {
    static auto* const all = new Mappings;  // kept for exit handlers that end contexts
    return *all;
  }

  // One more who sees `page`.  A context of the GPU is current.
  cuda::Result take(const cuda::Driver& d, cuda::Device gpu, std::uintptr_t page, bool registers) {
    const std::lock_guard hold(lock_);
    if (auto known = users_.find(page); known != users_.end()) {
      ++known->second.count;
      return cuda::kSuccess;
    }
    // The whole of it: the next register may be another context's.
    const cuda::Result r = d.host_register(reinterpret_cast<void*>(page), page_size(),
                                           kPortable | kDeviceMap | (registers ? kIoMemory : 0));
    // Mapped by somebody else of this process, who lets it go, too.  Adapters that we opened are
    // nobody else's; a software adapter maps its own pages for as long as they live.
    const bool theirs = r == kAlreadyRegistered;
    if (r != cuda::kSuccess && !theirs) return r;
    users_[page] = {1, gpu, theirs};
    return cuda::kSuccess;
  }

  void give_back(std::uintptr_t page) {
    const std::lock_guard hold(lock_);
    const auto known = users_.find(page);
    if (known == users_.end() || --known->second.count != 0) return;
    const Users last = known->second;
    users_.erase(known);
    const cuda::Driver* const d = cuda::driver();
    if (last.theirs || d == nullptr) return;
    const cuda::ScopedContext scope(*d, last.gpu);
    if (scope) (void)d->host_unregister(reinterpret_cast<void*>(page));
  }

 private:
  struct Users {
    int count = 0;
    cuda::Device gpu = -1;  // in whose context it was mapped
    bool theirs = false;
  };
  std::mutex lock_;  // held while CUDA maps and unmaps: a page that comes again waits for its end
  std::map<std::uintptr_t, Users> users_;
};

}  // namespace

std::unique_ptr<MappedPage> MappedPage::map(const cuda::Driver& d, cuda::Device gpu, void* at,
                                            bool registers, cuda::Result& why_not) {
  const std::uintptr_t page = page_start(reinterpret_cast<std::uintptr_t>(at));
  const cuda::ScopedContext scope(d, gpu);
  why_not = scope.result();
  if (!scope) return nullptr;
  why_not = Mappings::of_process().take(d, gpu, page, registers);
  if (why_not != cuda::kSuccess) return nullptr;
  cuda::Address address = 0;
  why_not = d.host_device_pointer(&address, at, 0);
  if (why_not == cuda::kSuccess) return std::unique_ptr<MappedPage>(new MappedPage(page, address));
  Mappings::of_process().give_back(page);
  return nullptr;
}

MappedPage::~MappedPage() { Mappings::of_process().give_back(page_); }

}  // namespace twinpath::gpu
