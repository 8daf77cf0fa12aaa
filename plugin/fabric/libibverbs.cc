// Fills the verbs table from libibverbs.so.1.  Symbols are taken with the version whose
// structures our headers declare: the default version of a newer library could differ.
#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include "plugin/fabric/fabric.h"

namespace twinpath {
namespace {

// The library stays open for the life of the process: its providers keep threads and at-fork
// handlers that would be left without code.
struct Library {
  void* handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  std::string error = handle == nullptr ? dlerror() : "";
};
const Library& libibverbs() {
  static const Library library;
  return library;
}

// The exported symbol: takes the port attributes of the first libibverbs, a prefix of today's.
using ExportedQueryPort = int (*)(ibv_context*, std::uint8_t, ibv_port_attr*);
ExportedQueryPort exported_query_port() {
  static const auto function = reinterpret_cast<ExportedQueryPort>(
      libibverbs().handle == nullptr
          ? nullptr
          : dlvsym(libibverbs().handle, "ibv_query_port", "IBVERBS_1.1"));
  return function;
}

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attr) {
  *attr = {};
  // verbs_get_ctx_op written out: the macro is a GNU statement expression.  A library older than
  // our header has a smaller verbs_context, which grows at its front.
  verbs_context* const extended = verbs_get_ctx(context);
  if (extended != nullptr &&
      extended->sz >= sizeof *extended - offsetof(verbs_context, query_port) &&
      extended->query_port != nullptr) {
    return extended->query_port(context, port, attr, sizeof *attr);
  }
  // Fields that the old structure lacks (flags, port_cap_flags2) stay zero.
  return exported_query_port()(context, port, attr);
}

// ibv_port_attr of rdma-core 50 on, which has the whole speed code behind what our headers know
// (commit "verbs: Add support for XDR speed in ibv_query_port", verbs.h).
struct LongPortAttr {
  static constexpr std::size_t kSpeedAt = 52;
  alignas(ibv_port_attr) std::array<std::byte, 56> bytes{};
  std::uint32_t speed_code() const {
    std::uint32_t code = 0;
    std::memcpy(&code, bytes.data() + kSpeedAt, sizeof code);
    return code;
  }
};
static_assert(offsetof(ibv_port_attr, port_cap_flags2) + 4 == LongPortAttr::kSpeedAt);
static_assert(sizeof(ibv_port_attr) <= sizeof(LongPortAttr));

// rdma-core 62 on (IBVERBS_1.16): in units of 100 Mb/s, of what may be several physical ports.
using QueryPortSpeed = int (*)(ibv_context*, std::uint32_t, std::uint64_t*);

int port_speed(ibv_context* context, std::uint8_t port) {
  static const auto query = reinterpret_cast<QueryPortSpeed>(
      dlvsym(libibverbs().handle, "ibv_query_port_speed", "IBVERBS_1.16"));
  std::uint64_t hundreds = 0;
  constexpr std::uint64_t kMost = 1'000'000;  // 100 Tb/s: what is above is no speed
  if (query != nullptr && query(context, port, &hundreds) == 0 && hundreds > 0 && hundreds < kMost)
    return static_cast<int>(hundreds * 100);
  verbs_context* const extended = verbs_get_ctx(context);
  if (extended == nullptr ||
      extended->sz < sizeof *extended - offsetof(verbs_context, query_port) ||
      extended->query_port == nullptr)
    return 0;
  // A library that knows less leaves the end zero.
  LongPortAttr attr;
  auto* const known = reinterpret_cast<ibv_port_attr*>(attr.bytes.data());
  if (extended->query_port(context, port, known, sizeof attr.bytes) != 0) return 0;
  return port_speed_mbps(attr.speed_code(), known->active_width);
}

}  // namespace

bool load_libibverbs(Verbs& table, std::string& why_not) {
  void* const library = libibverbs().handle;
  if (library == nullptr) {
    why_not = libibverbs().error;
    return false;
  }
  Verbs found;
#define TP_LOAD(name, version, required)                                                           \
  found.name = reinterpret_cast<decltype(found.name)>(dlvsym(library, "ibv_" #name, version));     \
  if (required && found.name == nullptr) {                                                         \
    why_not = "libibverbs.so.1 has no ibv_" #name "@" version "; rdma-core 28 or newer is needed"; \
    return false;                                                                                  \
  }
  TP_VERBS(TP_LOAD)
#undef TP_LOAD
  if (exported_query_port() == nullptr) {
    why_not = "libibverbs.so.1 has no ibv_query_port@IBVERBS_1.1";
    return false;
  }
  found.query_port = &query_port;
  found.port_speed = &port_speed;
  table = found;
  return true;
}

}  // namespace twinpath
