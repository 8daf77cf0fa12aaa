#include "proxy/wire/handshake.h"

#include <algorithm>

namespace twinpath {
namespace {

constexpr std::uint32_t k24Bits = 0xffffff;
constexpr std::uint8_t kEthernet = 1, kGrhRequired = 2;

}  // namespace

std::string printable(std::string text, std::size_t most) {
  if (text.size() > most) text.resize(most);
  for (char& c : text)
    if (c < 0x20 || c > 0x7e) c = '?';
  return text;
}

void encode_address(Writer& w, QueueAddress address) {
  w.integer(address.qpn);
  w.integer(address.psn);
}

bool decode_address(Reader& r, QueueAddress& address) {
  address.qpn = r.integer<std::uint32_t>();
  address.psn = r.integer<std::uint32_t>();
  return address.qpn <= k24Bits && address.psn <= k24Bits;
}

FrameHeader decode_header(std::span<const std::uint8_t, kFrameHeaderBytes> bytes) {
  Reader r(bytes);
  FrameHeader h;
  h.magic = r.integer<std::uint32_t>();
  h.version = r.integer<std::uint16_t>();
  h.type = static_cast<FrameType>(r.integer<std::uint16_t>());
  h.body_bytes = r.integer<std::uint32_t>();
  r.raw(h.nonce.data(), h.nonce.size());
  return h;
}

std::vector<std::uint8_t> make_frame(FrameType type, const Nonce& nonce,
                                     std::span<const std::uint8_t> body) {
  Writer w;
  w.integer(kFrameMagic);
  w.integer(kProtocolVersion);
  w.integer(static_cast<std::uint16_t>(type));
  w.integer(static_cast<std::uint32_t>(body.size()));
  w.raw(nonce.data(), nonce.size());
  w.raw(body.data(), body.size());
  return w.take();
}

std::uint8_t encode_port_flags(const HelloRail& rail) {
  return static_cast<std::uint8_t>((rail.roce ? kEthernet : 0) |
                                   (rail.grh_required ? kGrhRequired : 0));
}

void decode_port_flags(std::uint8_t flags, HelloRail& rail) {
  rail.roce = (flags & kEthernet) != 0;
  rail.grh_required = (flags & kGrhRequired) != 0;
}

void encode_rail(Writer& w, const HelloRail& rail) {
  w.text(rail.port);
  w.integer(rail.lid);
  w.integer(static_cast<std::uint8_t>(rail.mtu));
  w.raw(rail.gid.raw, sizeof rail.gid.raw);
  w.integer(rail.gid_index);
  w.integer(encode_port_flags(rail));
  w.integer(rail.speed_mbps);
}

bool decode_rail(Reader& r, int number, HelloRail& rail, std::string& why) {
  rail.port = printable(r.text());
  rail.lid = r.integer<std::uint16_t>();
  const int mtu = r.integer<std::uint8_t>();
  r.raw(rail.gid.raw, sizeof rail.gid.raw);
  rail.gid_index = r.integer<std::uint8_t>();
  decode_port_flags(r.integer<std::uint8_t>(), rail);
  rail.speed_mbps = r.integer<std::uint32_t>();
  if (!r.ok()) {
    why = "the hello ends inside rail " + std::to_string(number);
    return false;
  }
  if (mtu < IBV_MTU_256 || mtu > IBV_MTU_4096) {
    why = "rail " + std::to_string(number) + " of the hello has MTU code " + std::to_string(mtu);
    return false;
  }
  rail.mtu = static_cast<ibv_mtu>(mtu);
  return true;
}

std::vector<std::uint8_t> encode_hello(const Hello& hello) {
  Writer w;
  w.text(hello.version);
  w.text(hello.host);
  w.integer(hello.pid);
  w.text(hello.device);
  w.integer(hello.qps_per_connection);
  w.integer(hello.capabilities);
  w.integer(static_cast<std::uint8_t>(hello.rails.size()));
  for (const HelloRail& rail : hello.rails) encode_rail(w, rail);
  w.integer(static_cast<std::uint8_t>(hello.standby));
  w.text(hello.gpu);
  const auto record = encode_record(hello.placement);
  w.integer(static_cast<std::uint16_t>(record.size()));
  w.raw(record.data(), record.size());
  return w.take();
}

bool decode_hello(std::span<const std::uint8_t> body, Hello& hello, std::string& why) {
  Reader r(body);
  hello.version = printable(r.text());
  hello.host = printable(r.text());
  hello.pid = r.integer<std::uint32_t>();
  hello.device = printable(r.text());
  hello.qps_per_connection = r.integer<std::uint16_t>();
  hello.capabilities = r.integer<std::uint32_t>();
  const int rails = r.integer<std::uint8_t>();
  if (!r.ok()) {
    why = "the hello is cut short";
    return false;
  }
  if (rails < 1 || rails > kMaxRails) {
    why = "the hello names " + std::to_string(rails) + " rails, 1 to " + std::to_string(kMaxRails) +
          " are possible";
    return false;
  }
  if (hello.qps_per_connection < 1 || hello.qps_per_connection > 1024) {
    why =
        "the hello asks for " + std::to_string(hello.qps_per_connection) + " queues per connection";
    return false;
  }
  hello.rails.clear();
  for (int i = 0; i < rails; ++i) {
    HelloRail rail;
    if (!decode_rail(r, i, rail, why)) return false;
    hello.rails.push_back(std::move(rail));
  }
  hello.standby = r.integer<std::uint8_t>();
  if (r.ok() && (hello.standby > kMaxStandby || hello.standby >= rails)) {
    why = "the hello says that " + std::to_string(hello.standby) + " of " + std::to_string(rails) +
          " rails are in reserve";
    return false;
  }
  hello.gpu = printable(r.text());
  const std::size_t bytes = r.integer<std::uint16_t>();
  std::array<std::uint8_t, kRecordBytes> record{};
  if (!r.ok() || bytes != record.size()) {
    why = "the hello has no placement record of " + std::to_string(record.size()) + " bytes";
    return false;
  }
  r.raw(record.data(), record.size());
  if (!r.ok()) {
    why = "the hello ends inside its placement record";
    return false;
  }
  return decode_record(record, hello.placement, why);
}

std::vector<std::uint8_t> encode_queues(const Queues& queues) {
  Writer w;
  w.integer(static_cast<std::uint8_t>(queues.queues.size()));
  for (const QueueAddress& q : queues.queues) encode_address(w, q);
  w.integer(queues.address);
  w.integer(static_cast<std::uint8_t>(queues.rkeys.size()));
  for (std::uint32_t key : queues.rkeys) w.integer(key);
  w.integer(static_cast<std::uint8_t>(queues.extras.size()));
  for (const QueueExtras& e : queues.extras) {
    w.integer(e.vendor);
    w.integer(e.options);
    w.integer(e.mask);
  }
  return w.take();
}

bool decode_queues(std::span<const std::uint8_t> body, Queues& queues, std::string& why) {
  Reader r(body);
  const int count = r.integer<std::uint8_t>();
  if (!r.ok() || count < 1 || count > kMaxQps) {
    why = "the queue list names " + std::to_string(count) + " queues, 1 to " +
          std::to_string(kMaxQps) + " are possible";
    return false;
  }
  queues = {};
  for (int i = 0; i < count; ++i) {
    QueueAddress q;
    if (!decode_address(r, q)) {
      why = "queue " + std::to_string(i) + " has a number of more than 24 bits";
      return false;
    }
    queues.queues.push_back(q);
  }
  queues.address = r.integer<std::uint64_t>();
  const int keys = r.integer<std::uint8_t>();
  if (keys > kMaxRails) {
    why = "the queue list holds " + std::to_string(keys) + " ring keys";
    return false;
  }
  for (int i = 0; i < keys; ++i) queues.rkeys.push_back(r.integer<std::uint32_t>());
  const int extras = r.integer<std::uint8_t>();
  if (r.ok() && extras != 0 && extras != count) {
    why = "the queue list has extras of " + std::to_string(extras) + " queues, but " +
          std::to_string(count) + " queues";
    return false;
  }
  for (int i = 0; i < extras; ++i) {
    QueueExtras e;
    e.vendor = r.integer<std::uint32_t>();
    e.options = r.integer<std::uint32_t>();
    e.mask = r.integer<std::uint32_t>();
    queues.extras.push_back(e);
  }
  if (!r.ok()) {
    why = "the queue list is cut short";
    return false;
  }
  return true;
}

std::vector<std::uint8_t> encode_refusal(std::string_view text) {
  Writer w;
  w.text(text.substr(0, 1024));
  return w.take();
}

std::string decode_refusal(std::span<const std::uint8_t> body) {
  Reader r(body);
  std::string text = r.text();
  if (!r.ok() || text.empty()) return "(no reason given)";
  return printable(std::move(text), 1024);
}

}  // namespace twinpath
