#pragma once
// Signal tables that other processes of this host add to directly: pinned memory like
// DeviceBlock's Place::shared, but of a memfd, which a peer opens through /proc/<pid>/fd.  The
// numbers of the file that travel with it make sure that it is the right one; where /proc is not
// shared (containers), opening fails and the peer's queues use the fabric.
//
// Threads: setup and teardown.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "gda/memory/device_memory.h"
#include "plugin/base/shared_memory.h"
#include "plugin/base/wire.h"

namespace twinpath::gda {

// What a peer needs to map a table; also says whether it is in the same process.
struct TableOffer {
  std::uint64_t process = 0;  // random number of the process
  std::int32_t pid = 0;
  std::int32_t fd = -1;  // -1: not to be mapped
  std::uint64_t device = 0, inode = 0;
  std::uint64_t bytes = 0;

  bool same_process() const;
};
TableOffer own_offer();  // without a table
void encode_offer(const TableOffer& offer, Writer& out);
TableOffer decode_offer(Reader& in);

class SharedTables final : public DeviceBlock {
 public:
  // Zeroed.  Logs why not (at INFO: plain memory does, too).
  static Result<std::unique_ptr<SharedTables>> make(int gpu, std::size_t bytes);
  ~SharedTables() override;
  SharedTables(const SharedTables&) = delete;
  SharedTables& operator=(const SharedTables&) = delete;

  std::uint64_t device_address() const override { return reinterpret_cast<std::uintptr_t>(p_); }
  std::uint8_t* host() const override { return p_; }
  std::size_t bytes() const override { return bytes_; }
  Status copy_in(std::size_t offset, const void* from, std::size_t bytes) override;
  TableOffer offer() const;

 private:
  SharedTables(SharedMemory memory, std::size_t bytes)
      : memory_(std::move(memory)), p_(memory_.as<std::uint8_t>()), bytes_(bytes) {}
  Status pin(int gpu);

  const SharedMemory memory_;
  std::uint8_t* const p_;
  const std::size_t bytes_;
  int pinned_for_ = -1;  // GPU
};

// A peer's table, mapped here.
class MappedTable {
 public:
  // Null and `why` when it cannot be had.
  static std::unique_ptr<MappedTable> open(const TableOffer& offer, std::string& why);
  std::uint8_t* data() const { return memory_.as<std::uint8_t>(); }
  std::size_t bytes() const { return bytes_; }

 private:
  MappedTable(SharedMemory memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}
  const SharedMemory memory_;
  const std::size_t bytes_;
};

}  // namespace twinpath::gda
