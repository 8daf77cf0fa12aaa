#include "proxy/wire/handshake.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "plugin/base/host.h"
#include "plugin/rdma/handle.h"
#include "proxy/wire/shared.h"
#include "test/support/catch.h"
#include "test/support/needs.h"

namespace twinpath {
namespace {

Hello sample_hello(int rails) {
  Hello h;
  h.version = "0.1.0";
  h.host = "alpha";
  h.pid = 4711;
  h.device = "mlx5_0+mlx5_1";
  h.qps_per_connection = 4;
  for (int i = 0; i < rails; ++i) {
    HelloRail r;
    r.port = "mlx5_" + std::to_string(i);
    r.lid = static_cast<std::uint16_t>(100 + i);
    r.grh_required = i % 2 == 1;
    r.mtu = IBV_MTU_4096;
    r.gid.raw[15] = static_cast<std::uint8_t>(i);
    r.gid_index = 3;
    r.roce = true;
    r.speed_mbps = 400000;
    h.rails.push_back(r);
  }
  return h;
}

TEST_CASE("A hello comes back as it went") {
  Hello in = sample_hello(kMaxRails);
  in.standby = 2;
  Hello out;
  std::string why;
  REQUIRE(decode_hello(encode_hello(in), out, why));
  CHECK(out.standby == in.standby);
  CHECK(out.version == in.version);
  CHECK(out.host == in.host);
  CHECK(out.pid == in.pid);
  CHECK(out.device == in.device);
  CHECK(out.qps_per_connection == 4);
  REQUIRE(out.rails.size() == in.rails.size());
  CHECK(out.rails[7].port == "mlx5_7");
  CHECK(out.rails[7].lid == 107);
  CHECK(out.rails[7].grh_required);
  CHECK_FALSE(out.rails[6].grh_required);
  CHECK(out.rails[7].mtu == IBV_MTU_4096);
  CHECK(out.rails[7].gid.raw[15] == 7);
  CHECK(out.rails[7].speed_mbps == 400000);
}

TEST_CASE("A hello cut anywhere is refused with a reason") {
  Hello in = sample_hello(2);
  in.session = 0x123456789abcdef1;
  in.shared_pairs = kMostSharedPairs;
  const auto whole = encode_hello(in);
  // Older versions end there: nothing is shared with these.
  const std::size_t older = whole.size() - sizeof in.session - sizeof in.shared_pairs;
  Hello got;
  std::string none;
  REQUIRE(decode_hello(whole, got, none));
  CHECK(got.session == in.session);
  CHECK(got.shared_pairs == kMostSharedPairs);
  REQUIRE(decode_hello({whole.data(), older}, got, none));
  CHECK(got.session == 0);
  CHECK(got.shared_pairs == 0);
  for (std::size_t n = 0; n < whole.size(); ++n) {
    if (n == older) continue;
    Hello out;
    std::string why;
    CHECK_FALSE(decode_hello({whole.data(), n}, out, why));
    CHECK_FALSE(why.empty());
  }
}

TEST_CASE("A hello with impossible values is refused") {
  Hello out;
  std::string why;
  CHECK_FALSE(decode_hello(encode_hello(sample_hello(0)), out, why));
  CHECK_FALSE(decode_hello(encode_hello(sample_hello(9)), out, why));
  Hello h = sample_hello(1);
  h.qps_per_connection = 0;
  CHECK_FALSE(decode_hello(encode_hello(h), out, why));
  h = sample_hello(1);
  h.rails[0].mtu = static_cast<ibv_mtu>(6);
  CHECK_FALSE(decode_hello(encode_hello(h), out, why));
  CHECK(why.find("MTU") != std::string::npos);
  h = sample_hello(2);
  for (const int standby : {2, kMaxStandby + 1, 255}) {
    h.standby = standby;
    CHECK_FALSE(decode_hello(encode_hello(h), out, why));
    CHECK(why.find("in reserve") != std::string::npos);
  }
  h = sample_hello(1);
  h.shared_pairs = kMostSharedPairs + 1;
  CHECK_FALSE(decode_hello(encode_hello(h), out, why));
  CHECK(why.find("shared queue pairs") != std::string::npos);
}

TEST_CASE("A peer cannot put control characters into our log") {
  Hello h = sample_hello(1);
  h.host = "bad\n\x1b[31mhost";
  Hello out;
  std::string why;
  REQUIRE(decode_hello(encode_hello(h), out, why));
  CHECK(out.host == "bad??[31mhost");
  CHECK(decode_refusal(encode_refusal("line\nbreak")) == "line?break");
}

TEST_CASE("Queues come back as they went and a cut or overlong list is refused") {
  Queues in;
  for (std::uint32_t i = 0; i < kMaxQps; ++i) in.queues.push_back({0xfffff0 + i % 16, i});
  in.address = 0x7fff00001000;
  in.rkeys = {1, 2, 3};
  for (std::uint32_t i = 0; i < kMaxQps; ++i) in.extras.push_back({0x2c9, i, 0});
  const auto whole = encode_queues(in);
  Queues out;
  std::string why;
  REQUIRE(decode_queues(whole, out, why));
  CHECK(out.queues.size() == kMaxQps);
  CHECK(out.queues[31].psn == 31);
  CHECK(out.address == in.address);
  CHECK(out.rkeys == in.rkeys);
  CHECK(out.extras == in.extras);
  for (std::size_t n = 0; n < whole.size(); ++n)
    CHECK_FALSE(decode_queues({whole.data(), n}, out, why));
  in.extras.pop_back();
  CHECK_FALSE(decode_queues(encode_queues(in), out, why));
  CHECK(why.find("extras of 31 queues") != std::string::npos);
  in.extras.clear();
  REQUIRE(decode_queues(encode_queues(in), out, why));
  CHECK(out.extras.empty());
  in.queues[0].qpn = 1u << 24;
  CHECK_FALSE(decode_queues(encode_queues(in), out, why));
  in.queues.assign(kMaxQps + 1, {1, 1});
  CHECK_FALSE(decode_queues(encode_queues(in), out, why));
}

TEST_CASE("What is shared comes back as it went, one of each queue, and nonsense is refused") {
  Queues in;
  in.queues = {{7, 1}, {8, 2}};
  in.shares = {{1, kMostMembers - 1, {{7, 1}, {9, 3}}}, {0xffffffff, 0, {{8, 2}, {10, 4}}}};
  const std::size_t older = [&] {
    Queues without = in;
    without.shares.clear();
    return encode_queues(without).size();
  }();
  const auto whole = encode_queues(in);
  Queues out;
  std::string why;
  REQUIRE(decode_queues(whole, out, why));
  REQUIRE(out.shares.size() == 2);
  CHECK(out.shares[0].member == kMostMembers - 1);
  CHECK(out.shares[1].set == 0xffffffff);
  CHECK(out.shares[1].pairs[1].qpn == 10);
  CHECK(out.shares[1].pairs[1].psn == 4);
  for (std::size_t n = older + 1; n < whole.size(); ++n) {
    CHECK_FALSE(decode_queues({whole.data(), n}, out, why));
    CHECK(why.find("shared queue pairs") != std::string::npos);
  }
  const auto refused = [&](auto&& spoil) {
    Queues bad = in;
    spoil(bad);
    return !decode_queues(encode_queues(bad), out, why);
  };
  CHECK(refused([](Queues& q) { q.shares.pop_back(); }));
  CHECK(refused([](Queues& q) { q.shares[0].member = kMostMembers; }));
  CHECK(refused([](Queues& q) { q.shares[1].pairs.clear(); }));
  CHECK(refused([](Queues& q) { q.shares[1].pairs.resize(kMostSharedPairs + 1); }));
  CHECK(refused([](Queues& q) { q.shares[1].pairs[0].psn = 1u << 24; }));
}

TEST_CASE("An immediate names a member beside all that it says without") {
  for (int member = 0; member < kMostMembers; ++member) {
    const Immediate message{63, 7, 255, 32, true, true, false};
    const std::uint32_t bits = with_member(encode(message), member);
    CHECK(member_of(bits) == member);
    CHECK(without_member(bits) == encode(message));
    const std::uint32_t parcel = with_member(encode(ParcelImmediate{255, 16}), member);
    CHECK(is_parcel(parcel));
    CHECK(member_of(parcel) == member);
    CHECK(without_member(parcel) == encode(ParcelImmediate{255, 16}));
  }
}

TEST_CASE("Of shared pairs the first has what is short, the others the rest in turn") {
  CHECK(pair_for(1, 5, 1 << 20, true) == 0);
  CHECK(pair_for(2, 5, kShortWrite, false) == 0);
  CHECK(pair_for(2, 5, kShortWrite + 1, false) == 1);
  // The short end of a message that must come in order goes behind its other chunks.
  CHECK(pair_for(2, 5, 1, true) == 1);
  CHECK(pair_for(4, 0, 1 << 20, false) == 1);
  CHECK(pair_for(4, 2, 1 << 20, false) == 3);
  CHECK(pair_for(4, 3, 1 << 20, false) == 1);
}

TEST_CASE("A frame carries magic, version, type, length and nonce") {
  const Nonce nonce = random_nonce();
  const auto frame = make_frame(FrameType::ready, nonce, {});
  REQUIRE(frame.size() == kFrameHeaderBytes);
  const FrameHeader h =
      decode_header(std::span<const std::uint8_t, kFrameHeaderBytes>(frame.data(), frame.size()));
  CHECK(h.magic == kFrameMagic);
  CHECK(h.version == kProtocolVersion);
  CHECK(h.type == FrameType::ready);
  CHECK(h.body_bytes == 0);
  CHECK(h.nonce == nonce);
}

Handle sample_handle() {
  Handle h;
  h.nonce = random_nonce();
  h.address.in4.sin_family = AF_INET;
  h.address.in4.sin_port = htons(4321);
  h.address.in4.sin_addr.s_addr = htonl(0x0a000001);
  h.host_hash = 0x1122334455667788;
  h.pid = 99;
  for (std::uint8_t i = 0; i < 2; ++i) h.gids.push_back({.raw = {0xfd, 1, 2, i}});
  for (std::uint8_t i = 2; i < 4; ++i) h.others.push_back({.raw = {0xfd, 1, 2, i}});
  return h;
}

TEST_CASE("A handle comes back as it went and begins without a connection") {
  std::array<std::uint8_t, kHandleBytes> bytes;
  bytes.fill(0xee);
  const Handle in = sample_handle();
  encode_handle(in, bytes);
  Handle out;
  std::string why;
  REQUIRE(decode_handle(bytes, out, why));
  CHECK(out.nonce == in.nonce);
  CHECK(out.host_hash == in.host_hash);
  CHECK(out.pid == 99);
  CHECK(out.address.in4.sin_port == htons(4321));
  REQUIRE(out.gids.size() == 2);
  for (std::uint8_t i = 0; i < 2; ++i)
    CHECK((out.gids[i].raw[0] == 0xfd && out.gids[i].raw[3] == i));
  REQUIRE(out.others.size() == 1);  // there is room for three
  CHECK((out.others[0].raw[0] == 0xfd && out.others[0].raw[3] == 2));
  CHECK(out.address.in4.sin_addr.s_addr == htonl(0x0a000001));
  std::uint64_t connection = 1;
  REQUIRE(load_connection(bytes, connection));
  CHECK(connection == 0);
}

TEST_CASE("A host is one whatever its containers are called") {
  const std::uint64_t here = host_hash();
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const pid_t child = fork();
  if (child == 0) {
    // 0: it may not be given another name here.
    std::uint64_t there = 0;
    if (unshare(CLONE_NEWUTS) == 0 && sethostname("another-name", 12) == 0) there = host_hash();
    (void)!write(ends[1], &there, sizeof there);
    _exit(0);
  }
  std::uint64_t there = 0;
  CHECK(read(ends[0], &there, sizeof there) == sizeof there);
  close(ends[0]);
  close(ends[1]);
  waitpid(child, nullptr, 0);
  NEEDS(there != 0, "needs the right to name a host (unshare -u)");
  CHECK(there == here);
}

TEST_CASE("A handle with any bit of its static part changed, or cut, is refused") {
  std::array<std::uint8_t, kHandleBytes> bytes;
  encode_handle(sample_handle(), bytes);
  Handle out;
  std::string why;
  for (std::size_t i = 0; i < 112; ++i) {
    auto damaged = bytes;
    damaged[i] ^= 0x10;
    CHECK_FALSE(decode_handle(damaged, out, why));
  }
  for (std::size_t n = 0; n < 112; ++n) {
    auto cut = bytes;
    std::fill(cut.begin() + static_cast<std::ptrdiff_t>(n), cut.end(), std::uint8_t{0});
    // The very last bytes of the checksum may be zero by chance; then nothing was cut.
    if (cut == bytes) continue;
    CHECK_FALSE(decode_handle(cut, out, why));
    CHECK_FALSE(decode_handle({bytes.data(), n}, out, why));
  }
}

TEST_CASE("The connector's number in a handle is taken from that handle only") {
  std::array<std::uint8_t, kHandleBytes> a, b;
  encode_handle(sample_handle(), a);
  encode_handle(sample_handle(), b);
  store_connection(a, 7);
  std::uint64_t connection = 0;
  REQUIRE(load_connection(a, connection));
  CHECK(connection == 7);
  std::copy(a.begin() + 112, a.end(), b.begin() + 112);
  CHECK_FALSE(load_connection(b, connection));
  store_connection(a, 0);
  REQUIRE(load_connection(a, connection));
  CHECK(connection == 0);
}

}  // namespace
}  // namespace twinpath
