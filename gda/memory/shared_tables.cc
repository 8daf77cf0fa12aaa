// See shared_tables.h.
#include "gda/memory/shared_tables.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>

#include "plugin/base/file.h"
#include "plugin/base/log.h"
#include "plugin/gpu/driver.h"

namespace twinpath::gda {
namespace {

namespace cuda = gpu::cuda;

// CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP
constexpr unsigned kRegisterPortableMapped = 0x01 | 0x02;

constexpr const char* kMemoryName = "twinpath-signals";

std::uint64_t this_process() {
  // Told apart by chance: process ids are not unique across containers.
  static const std::uint64_t number = [] {
    std::random_device source;
    return std::uint64_t{source()} << 32 | source();
  }();
  return number;
}

}  // namespace

bool TableOffer::same_process() const { return process == this_process() && pid == ::getpid(); }

TableOffer own_offer() {
  TableOffer offer;
  offer.process = this_process();
  offer.pid = ::getpid();
  return offer;
}

void encode_offer(const TableOffer& offer, Writer& out) {
  out.integer(offer.process);
  out.integer(offer.pid);
  out.integer(offer.fd);
  out.integer(offer.device);
  out.integer(offer.inode);
  out.integer(offer.bytes);
}

TableOffer decode_offer(Reader& in) {
  TableOffer offer;
  offer.process = in.integer<std::uint64_t>();
  offer.pid = in.integer<std::int32_t>();
  offer.fd = in.integer<std::int32_t>();
  offer.device = in.integer<std::uint64_t>();
  offer.inode = in.integer<std::uint64_t>();
  offer.bytes = in.integer<std::uint64_t>();
  return offer;
}

Result<std::unique_ptr<SharedTables>> SharedTables::make(int gpu, std::size_t bytes) {
  auto memory = SharedMemory::create(kMemoryName, bytes, Writers::both);
  if (!memory) return memory.status();
  std::unique_ptr<SharedTables> tables(new SharedTables(std::move(memory).take(), bytes));
  TP_TRY(tables->pin(gpu));
  return tables;
}

Status SharedTables::pin(int gpu) {
  const cuda::Driver* d = gpu < 0 ? nullptr : cuda::driver();
  if (d == nullptr) return Status::ok;  // a CPU thread plays the GPU
  if (d->host_register == nullptr || d->host_unregister == nullptr ||
      d->host_device_pointer == nullptr)
    return Status::unsupported;
  // The context must not go before the registration.
  cuda::Context context = nullptr;
  if (d->primary_retain(&context, gpu) != cuda::kSuccess) return Status::system;
  const cuda::ScopedContext scope(*d, gpu);
  cuda::Result r = scope ? d->host_register(p_, bytes_, kRegisterPortableMapped) : scope.result();
  if (r != cuda::kSuccess) {
    (void)d->primary_release(gpu);
    TP_INFO(net, "GPU %d cannot use %zu bytes of shared memory for signals (%s)", gpu, bytes_,
            error_name(*d, r).c_str());
    return Status::system;
  }
  pinned_for_ = gpu;
  cuda::Address seen = 0;
  r = d->host_device_pointer(&seen, p_, 0);
  // Elsewhere for the GPU than for the CPU: our device structures know one address.
  return r == cuda::kSuccess && seen == device_address() ? Status::ok : Status::unsupported;
}

SharedTables::~SharedTables() {
  const cuda::Driver* d = pinned_for_ < 0 ? nullptr : cuda::driver();
  if (d != nullptr) {
    {
      const cuda::ScopedContext scope(*d, pinned_for_);
      if (scope) (void)d->host_unregister(p_);
    }
    (void)d->primary_release(pinned_for_);
  }
}

Status SharedTables::copy_in(std::size_t offset, const void* from, std::size_t bytes) {
  if (offset > bytes_ || bytes > bytes_ - offset) return Status::internal;
  if (bytes != 0) std::memcpy(p_ + offset, from, bytes);
  return Status::ok;
}

TableOffer SharedTables::offer() const {
  TableOffer offer = own_offer();
  struct stat s {};
  if (::fstat(memory_.fd(), &s) != 0) return offer;
  offer.fd = memory_.fd();
  offer.device = static_cast<std::uint64_t>(s.st_dev);
  offer.inode = static_cast<std::uint64_t>(s.st_ino);
  offer.bytes = bytes_;
  return offer;
}

std::unique_ptr<MappedTable> MappedTable::open(const TableOffer& offer, std::string& why) {
  if (offer.fd < 0) {
    why = "it shares no signal table";
    return nullptr;
  }
  const std::string path = "/proc/" + std::to_string(offer.pid) + "/fd/" + std::to_string(offer.fd);
  const UniqueFd fd = open_foreign_memory(path, kMemoryName, O_RDWR, why);
  if (!fd) {
    why = "its signal table " + why;
    return nullptr;
  }
  struct stat s {};
  if (::fstat(fd.get(), &s) != 0 || static_cast<std::uint64_t>(s.st_dev) != offer.device ||
      static_cast<std::uint64_t>(s.st_ino) != offer.inode || offer.bytes == 0) {
    why = "process " + std::to_string(offer.pid) + " here is another one (a container?)";
    return nullptr;
  }
  auto memory = SharedMemory::map(fd.get(), offer.bytes, Writers::both, why);
  if (!memory) return nullptr;
  return std::unique_ptr<MappedTable>(new MappedTable(std::move(memory).take(), offer.bytes));
}

}  // namespace twinpath::gda
