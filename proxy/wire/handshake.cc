#include "proxy/wire/handshake.h"

#include <algorithm>

#include "proxy/wire/shared.h"

namespace twinpath {
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
  w.integer(hello.session);
  w.integer(hello.shared_pairs);
  return w.take();
}

bool decode_hello(std::span<const std::uint8_t> body, Hello& hello, std::string& why) {
  Reader r(body);
  hello.version = loggable(r.text());
  hello.host = loggable(r.text());
  hello.pid = r.integer<std::uint32_t>();
  hello.device = loggable(r.text());
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
  hello.gpu = loggable(r.text());
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
  hello.session = 0;
  hello.shared_pairs = 0;
  if (r.left() != 0) {
    hello.session = r.integer<std::uint64_t>();
    hello.shared_pairs = r.integer<std::uint8_t>();
  }
  if (!r.ok() || hello.shared_pairs > kMostSharedPairs) {
    why = "the hello says of shared queue pairs what makes no sense";
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
  if (queues.shares.empty()) return w.take();
  w.integer(static_cast<std::uint8_t>(queues.shares.size()));
  for (const Queues::Share& share : queues.shares) {
    w.integer(share.set);
    w.integer(share.member);
    w.integer(static_cast<std::uint8_t>(share.pairs.size()));
    for (const QueueAddress& pair : share.pairs) encode_address(w, pair);
  }
  return w.take();
}

namespace {

bool decode_shares(Reader& r, Queues& queues) {
  const std::size_t shares = r.integer<std::uint8_t>();
  if (shares != queues.queues.size()) return false;
  queues.shares.resize(shares);
  for (Queues::Share& share : queues.shares) {
    share.set = r.integer<std::uint32_t>();
    share.member = r.integer<std::uint8_t>();
    const std::size_t pairs = r.integer<std::uint8_t>();
    if (!r.ok() || share.member >= kMostMembers || pairs < 1 || pairs > kMostSharedPairs)
      return false;
    share.pairs.resize(pairs);
    for (QueueAddress& pair : share.pairs)
      if (!decode_address(r, pair)) return false;
  }
  return r.ok();
}

}  // namespace

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
  if (r.left() != 0 && !decode_shares(r, queues)) {
    why = "the queue list says of shared queue pairs what makes no sense";
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
  return loggable(std::move(text), 1024);
}

}  // namespace twinpath
