// What is said on the control connection arrives whole and in order, however the bytes come.
#include "proxy/connect/control_channel.h"

#include <string>
#include <vector>

#include "proxy/wire/handshake.h"
#include "test/support/catch.h"
#include "test/support/far_end.h"

namespace twinpath {
namespace {

using Octets = FarEnd::Bytes;

// A letter for each message; of a frame its kind and the bytes of its body.
std::string heard(ControlChannel& channel) {
  std::string all;
  channel.receive([&](const ControlMessage& m) {
    all += "GFB.!?"[static_cast<int>(m.kind)];
    if (m.kind == ControlMessage::Kind::frame)
      all += std::to_string(static_cast<int>(m.frame)) + ":" + std::to_string(m.body.size());
  });
  return all;
}

Octets joined(std::initializer_list<Octets> parts) {
  Octets all;
  for (const Octets& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST_CASE("control messages are handed over whole, wherever the bytes are cut") {
  const Octets words = joined({encode_ready(7),
                               {kFailure},
                               encode_failover(FailoverKind::ask),
                               {'x', kBroken},
                               encode_ready(8),
                               {kGoodbye}});
  for (std::size_t cut = 0; cut <= words.size(); ++cut) {
    CAPTURE(cut);
    FarEnd far;
    ControlChannel channel(far.near_end(), true);
    far.say(words.data(), cut);
    const std::string first = heard(channel);
    far.say(words.data() + cut, words.size() - cut);
    CHECK(first + heard(channel) == ".3:4F.4:0?B.3:4G");
    CHECK(heard(channel).empty());
  }
}

TEST_CASE("without frames their bytes are unknown words") {
  FarEnd far;
  ControlChannel channel(far.near_end(), false);
  far.say({kFailoverByte, kGoodbye});
  CHECK(heard(channel) == "?G");
}

TEST_CASE("a frame that is too long to be one ends what can be understood") {
  FarEnd far;
  ControlChannel channel(far.near_end(), true);
  constexpr std::size_t kTooLong = kMostFailoverBody + 1;
  far.say({kFailure, kFailoverByte, 1, kTooLong & 0xff, kTooLong >> 8, kGoodbye});
  CHECK(heard(channel) == "F!");
  far.say({kGoodbye});
  CHECK(heard(channel) == "G");
}

TEST_CASE("a peer that talks without end is listened to for a while only") {
  FarEnd far;
  ControlChannel channel(far.near_end(), true);
  far.say(Octets(20000, 'x'));
  const std::size_t first = heard(channel).size();
  CHECK(first >= 16384);
  CHECK(first < 20000);
  CHECK(first + heard(channel).size() == 20000);
}

TEST_CASE("what the socket does not take goes later, in order") {
  FarEnd far;
  ControlChannel channel(far.near_end(), true);
  Octets said, arrived;
  for (std::uint8_t n = 0; channel.sent(); ++n) {
    const Octets block(4096, n);
    said.insert(said.end(), block.begin(), block.end());
    channel.send(block);
  }
  while (!channel.sent()) {
    const Octets some = far.hear();
    arrived.insert(arrived.end(), some.begin(), some.end());
    channel.send({});
  }
  const Octets rest = far.hear();
  arrived.insert(arrived.end(), rest.begin(), rest.end());
  CHECK(arrived == said);
}

}  // namespace
}  // namespace twinpath
