// Fills the verbs table from libibverbs.so.1.  Symbols are taken with the version whose
// structures our headers declare: the default version of a newer library could differ.
#include <dlfcn.h>

#include <cstddef>
#include <string>

#include "plugin/fabric/verbs.h"

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
    why_not = "libibverbs.so.1 has no ibv_" #name "@" version "; rdma-core 22 or newer is needed"; \
    return false;                                                                                  \
  }
  TP_VERBS(TP_LOAD)
#undef TP_LOAD
  if (exported_query_port() == nullptr) {
    why_not = "libibverbs.so.1 has no ibv_query_port@IBVERBS_1.1";
    return false;
  }
  found.query_port = &query_port;
  table = found;
  return true;
}

}  // namespace twinpath
