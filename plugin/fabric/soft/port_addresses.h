#pragma once
// The addresses of a job's ports.  They carry the job's hash, so that one of another host, user or
// job is recognised: a GID a hash of 32 bits, a LID what fits.
//
// Threads: any; a value.
#include <infiniband/verbs.h>

#include <cstdint>

#include "plugin/fabric/soft/personality.h"

namespace twinpath::soft {

class PortAddresses {
 public:
  explicit PortAddresses(std::uint32_t job_hash) : job_hash_(job_hash) {}

  std::uint32_t job_hash() const { return job_hash_; }
  // Of a port of the process's device of that index; zero where `kind` is not used.
  ibv_gid gid(int device, int port, const GidKind& kind) const;
  std::uint16_t lid(int device, int port) const;
  // Whether one of the job's ports may have it, or one of that device's.
  bool is_own(const ibv_gid& gid, const GidKind& kind) const;
  bool is_own(std::uint16_t lid) const;
  bool is_of(int device, std::uint16_t lid) const;

 private:
  std::uint32_t job_hash_;
};

}  // namespace twinpath::soft
