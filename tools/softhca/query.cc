// Questions about devices and ports.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "plugin/fabric/soft/like.h"
#include "tools/softhca/facade.h"

namespace twinpath::softhca {
namespace {

// Then the soft HCA says what such an adapter does, and SOFTHCA_LINK_LAYER nothing.
bool is_like_another(ibv_context* context) { return !soft::personality_of(context).name.empty(); }

// Nobody routes by it: it tells programs that the port has an address.
std::uint16_t lid_of(ibv_context* context, std::uint8_t port) {
  const std::uint64_t guid = verbs().get_device_guid(context->device);
  const auto index = static_cast<std::uint16_t>(__builtin_bswap64(guid) & 0xff);
  return static_cast<std::uint16_t>(index * 8 + port);
}

// The exported ibv_query_port fills the structure of the first libibverbs, which ends here.
constexpr std::size_t kOldPortBytes = offsetof(ibv_port_attr, port_cap_flags2);

// Ends of the older ibv_gid_entry structures need no care: it has not grown yet.
int gid_entry(ibv_context* context, std::uint32_t port, std::uint32_t index, ibv_gid_entry& out) {
  if (is_like_another(context)) return soft::query_gid_entry(context, port, index, &out);
  out = {};
  if (port > 255 || verbs().query_gid(context, static_cast<std::uint8_t>(port),
                                      static_cast<int>(index), &out.gid) != 0) {
    return EINVAL;
  }
  out.gid_index = index;
  out.port_num = port;
  out.gid_type =
      facade()->link_layer == LinkLayer::infiniband ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2;
  return 0;
}

}  // namespace

int query_device(ibv_context* context, ibv_device_attr* attr) {
  if (int rc = verbs().query_device(context, attr); rc != 0) return rc;
  attr->max_ah = 65536;  // address.cc makes them
  if (is_like_another(context)) return 0;
  // Programs know by these, too, that they may use libmlx5: a ConnectX-7.  Others get what
  // soft-RoCE says; no vendor at all is taken for a mistake.
  const bool mlx5 = std::string_view(context->device->name).starts_with("mlx5_");
  attr->vendor_id = mlx5 ? 0x02c9 : 0xffffff;
  attr->vendor_part_id = mlx5 ? 4129 : 0;
  return 0;
}

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attr) {
  if (int rc = verbs().query_port(context, port, attr); rc != 0) return rc;
  if (is_like_another(context)) return 0;
  if (facade()->link_layer == LinkLayer::infiniband) {
    attr->link_layer = IBV_LINK_LAYER_INFINIBAND;
    attr->lid = lid_of(context, port);
    attr->sm_lid = 1;
  } else {
    attr->link_layer = IBV_LINK_LAYER_ETHERNET;
    attr->lid = attr->sm_lid = 0;
  }
  attr->flags = 0;  // an address without a GID gets one (objects.cc)
  return 0;
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, std::size_t attr_size) {
  if (input != nullptr && input->comp_mask != 0) return EINVAL;
  if (attr_size < sizeof attr->orig_attr + sizeof attr->comp_mask) return EINVAL;
  ibv_device_attr_ex full{};  // no on-demand paging, no timestamps, no offloads
  if (int rc = query_device(context, &full.orig_attr); rc != 0) return rc;
  full.phys_port_cnt_ex = full.orig_attr.phys_port_cnt;
  std::memset(attr, 0, attr_size);
  std::memcpy(attr, &full, std::min(attr_size, sizeof full));
  return 0;
}

}  // namespace twinpath::softhca

using namespace twinpath::softhca;

extern "C" {

int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  return query_device(context, attr);
}

int ibv_query_port(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attr) {
  ibv_port_attr full{};
  if (int rc = query_port(context, port, &full); rc != 0) return rc;
  std::memcpy(static_cast<void*>(attr), &full, kOldPortBytes);
  return 0;
}

int ibv_query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid) {
  return verbs().query_gid(context, port, index, gid);
}

int _ibv_query_gid_ex(ibv_context* context, std::uint32_t port, std::uint32_t index,
                      ibv_gid_entry* entry, std::uint32_t flags, std::size_t entry_size) {
  ibv_gid_entry full;
  if (flags != 0 || entry_size < sizeof full) return EINVAL;
  if (int rc = gid_entry(context, port, index, full); rc != 0) return rc;
  std::memcpy(entry, &full, sizeof full);
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, std::size_t max,
                             std::uint32_t flags, std::size_t entry_size) {
  ibv_device_attr device;
  if (flags != 0 || entry_size < sizeof *entries) return -EINVAL;
  if (int rc = verbs().query_device(context, &device); rc != 0) return -rc;
  std::size_t found = 0;
  for (std::uint8_t port = 1; port <= device.phys_port_cnt; ++port) {
    ibv_port_attr attr;
    if (int rc = query_port(context, port, &attr); rc != 0) return -rc;
    for (int i = 0; i < attr.gid_tbl_len; ++i) {
      ibv_gid_entry entry;
      const int rc = gid_entry(context, port, static_cast<std::uint32_t>(i), entry);
      if (rc == ENODATA) continue;  // not in use
      if (rc != 0) return -rc;
      if (found == max) return -EINVAL;
      std::memcpy(reinterpret_cast<char*>(entries) + found++ * entry_size, &entry, sizeof entry);
    }
  }
  return static_cast<ssize_t>(found);
}

// Declared for providers only (infiniband/driver.h); ibv_devinfo uses it.  0: InfiniBand or RoCE
// v1, 1: RoCE v2.
int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, int* type);
int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, int* type) {
  ibv_gid_entry entry;
  if (gid_entry(context, port, index, entry) != 0) {
    errno = EINVAL;
    return -1;
  }
  *type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
  return 0;
}

int ibv_query_pkey(ibv_context* context, std::uint8_t port, int index, __be16* pkey) {
  return twinpath::soft::query_pkey(context, port, index, pkey);
}

int ibv_get_pkey_index(ibv_context* context, std::uint8_t port, __be16 wanted) {
  __be16 pkey = 0;
  for (int i = 0; ibv_query_pkey(context, port, i, &pkey) == 0; ++i) {
    if (pkey == wanted) return i;
  }
  return -1;
}

}  // extern "C"
