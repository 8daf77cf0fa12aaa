#pragma once
// What a refused call of verbs means and what to do about it, by call and errno.  A table, so that
// no remedy is given for the wrong cause.  Queue pairs that cannot be raised: proxy's raise_remedy.
//
// Threads: any.
#include <cstdint>
#include <optional>
#include <string>

namespace twinpath {

// Of a call that needs no privilege, whatever it is.
inline constexpr const char* kProfileRefuses =
    "the security profile of the container or sandbox (seccomp) refuses the adapter's calls "
    "(ioctl), and has to allow them";

enum class VerbsCall : std::uint8_t {
  open,  // of a device, and what it says of itself
  alloc_pd,
  create_cq,
  create_qp,
  register_host,
  register_gpu,  // GPU memory by its address
  register_dmabuf,
};

// What the meaning of an errno depends on.
struct ProcessFacts {
  std::optional<std::uint64_t> memlock;  // bytes that may be locked; nullopt: any
  std::string other = {};                // as limits_of_memory() has them
};

// Begins with "; ", or is empty where nothing is known.
std::string remedy_of(VerbsCall call, int error, const ProcessFacts& facts);
// With those of this process.
std::string remedy_of(VerbsCall call, int error);

}  // namespace twinpath
