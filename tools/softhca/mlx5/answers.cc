#include "tools/softhca/mlx5/answers.h"

#include <algorithm>

#include "plugin/fabric/soft/mlx5/capabilities.h"
#include "plugin/fabric/soft/mlx5/layout.h"
#include "plugin/fabric/soft/mlx5/opcode.h"

namespace twinpath::softhca::mlx5 {
namespace {

namespace model = soft::mlx5;

model::DeviceFacts facts_of(ibv_context* context) {
  model::DeviceFacts facts;
  ibv_device_attr device{};
  ibv_port_attr port{};
  if (ibv_query_device(context, &device) == 0) facts.ports = device.phys_port_cnt;
  if (ibv_query_port(context, 1, &port) == 0) {
    facts.ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    facts.gid_entries = static_cast<unsigned>(port.gid_tbl_len);
  }
  return facts;
}

std::uint64_t big_endian(const std::uint8_t* bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | bytes[i];
  return value;
}

void answer_roce_address(ibv_context* context, std::span<const std::uint8_t> in,
                         std::span<std::uint8_t> out) {
  const auto index = static_cast<int>(model::get(in, model::roce::kIndex));
  const auto asked = static_cast<std::uint8_t>(model::get(in, model::roce::kPort));
  const std::uint8_t port = asked == 0 ? 1 : asked;
  ibv_gid gid{};
  if (ibv_query_gid(context, port, index, &gid) != 0) return;
  model::set(out, model::roce::kGidHigh, big_endian(gid.raw));
  model::set(out, model::roce::kGidLow, big_endian(gid.raw + 8));
  model::set(out, model::roce::kL3Type, gid.raw[0] == 0xfe ? 1 : 0);
  model::set(out, model::roce::kVersion, 2);
}

}  // namespace

bool well_formed(const void* in, std::size_t in_bytes, const void* out, std::size_t out_bytes) {
  return in != nullptr && out != nullptr && in_bytes >= model::kHeaderBytes &&
         out_bytes >= model::kHeaderBytes && in_bytes <= kLongest && out_bytes <= kLongest;
}

void answer(ibv_context* context, std::span<const std::uint8_t> in, std::span<std::uint8_t> out) {
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  switch (static_cast<model::Opcode>(model::get(in, model::kOpcode))) {
    case model::Opcode::query_hca_cap:
      (void)model::write_capabilities(static_cast<unsigned>(model::get(in, model::kOpMod) >> 1),
                                      facts_of(context), out);
      break;
    case model::Opcode::query_roce_address:
      answer_roce_address(context, in, out);
      break;
    default:
      break;
  }
}

}  // namespace twinpath::softhca::mlx5
