#pragma once
// The other end of QEMU's device ivshmem-doorbell: it gets a memory, which becomes its BAR 2, and a
// descriptor for each interrupt vector.  Protocol: docs/specs/ivshmem-spec of QEMU; numbers of 8
// bytes, little endian, with at most one descriptor each.
//
// Threads: one at a time; interrupt() any.
#include <string>
#include <vector>

#include "plugin/base/owned.h"
#include "plugin/base/status.h"

namespace twinpath::softhca::pci {

class Ivshmem {
 public:
  // Listens at `path`, which must not be there.  Logs the cause.
  static Result<Ivshmem> listen(const std::string& path, int memory, unsigned vectors);
  ~Ivshmem();
  Ivshmem(Ivshmem&&) noexcept;
  Ivshmem& operator=(Ivshmem&&) = delete;

  // Gives a machine that has come what it needs; false when that did not succeed.  Blocks until one
  // comes.
  bool accept();
  void interrupt(unsigned vector) const;
  // Whether the machine has closed its end.
  bool gone() const;

 private:
  Ivshmem(std::string path, UniqueFd listener, int memory, std::vector<UniqueFd> vectors);

  std::string path_;
  UniqueFd listener_, machine_;
  int memory_;
  std::vector<UniqueFd> vectors_;
};

}  // namespace twinpath::softhca::pci
