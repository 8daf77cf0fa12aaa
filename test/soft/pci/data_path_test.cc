// Data from one function to the other, through the guest's memory, as the kernel's driver would
// have it done: no machine is needed for that.
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "plugin/base/options.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/mlx5/layout.h"
#include "test/support/catch.h"
#include "tools/softhca/pci/function.h"

namespace twinpath::softhca::pci {
namespace {

using mlx5::Opcode;
using mlx5::Refusal;

constexpr std::uint64_t kMemory = 4 << 20;

struct Machine {
  UniqueFd file{memfd_create("guest", MFD_CLOEXEC)};
  std::span<std::uint8_t> bytes;
  std::optional<GuestMemory> memory;
  Verbs verbs;
  std::vector<ibv_context*> contexts;
  Subnet subnet;

  Machine() {
    REQUIRE(ftruncate(file.get(), kMemory) == 0);
    void* const at = mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    REQUIRE(at != MAP_FAILED);
    bytes = {static_cast<std::uint8_t*>(at), kMemory};
    memory.emplace(bytes, kMemory, file.get());
    Config config = config_from_environment();
    config.soft_hcas = "2,like=mlx5-ib";
    std::string why;
    REQUIRE(load_soft_hca(verbs, config, why));
    int found = 0;
    ibv_device** const list = verbs.get_device_list(&found);
    for (int i = 0; i < found; ++i) contexts.push_back(verbs.open_device(list[i]));
    verbs.free_device_list(list);
    REQUIRE(contexts.size() == 2);
  }
  ~Machine() {
    for (ibv_context* context : contexts) (void)verbs.close_device(context);
    (void)munmap(bytes.data(), kMemory);
  }
};

// One function, and what a program on it has.  Everything of it lies from `base` on.
struct End {
  struct Value {
    mlx5::Field field;
    std::uint64_t value;
  };
  Machine& machine;
  const std::uint64_t base;
  std::vector<std::uint8_t> bar = std::vector<std::uint8_t>(32 * kGuestPage);
  std::atomic<int> interrupts{0};
  EventQueues events{*machine.memory, 8, [this](unsigned) { ++interrupts; }};
  DataPath data;
  Function function;
  std::vector<std::uint8_t> out;
  std::uint64_t uar = 0, eqn = 0, cqn = 0, pd = 0, qpn = 0, key = 0;

  // Places from `base` on.
  static constexpr std::uint64_t kEq = 0, kCq = 0x1000, kQp = 0x2000, kRecords = 0x3000,
                                 kData = 0x10000;
  static constexpr std::uint64_t kStart = 0x7fff00000100, kBytes = 3 * kGuestPage - 0x200;
  static constexpr mlx5::Field kPage{2176, 64};

  End(Machine& on, unsigned number, std::uint64_t at)
      : machine(on),
        base(at),
        data(on.verbs, on.contexts[number], *on.memory, bar, on.subnet),
        function(number, 32, *on.memory, events, &data) {}

  std::uint8_t* at(std::uint64_t place) { return machine.bytes.data() + base + place; }
  Refusal run(Opcode opcode, std::initializer_list<Value> values = {}) {
    const Layout& layout = *layout_of(opcode);
    std::vector<std::uint8_t> in(layout.bytes + (layout.list_at == 0 ? 0 : 32));
    mlx5::set(in, mlx5::kOpcode, static_cast<std::uint64_t>(opcode));
    for (const Value& v : values) mlx5::set(in, v.field, v.value);
    if (layout.list_at != 0) in.resize(layout.bytes + list_bytes);
    out.assign(4112, 0);
    return function.execute(in, out).refusal;
  }
  std::size_t list_bytes = 8;
  std::uint64_t number() const { return mlx5::get(out, mlx5::kNumber); }

  // The three pages of its data lie in the wrong order.
  Refusal make_key(std::uint64_t low_byte, std::uint64_t remote_write) {
    list_bytes = 24;
    const Refusal refusal =
        run(Opcode::create_mkey, {{mlx5::Field{22, 2}.at(16), 1},
                                  {mlx5::Field{20, 1}.at(16), 1},
                                  {mlx5::Field{18, 1}.at(16), remote_write},
                                  {mlx5::Field{56, 8}.at(16), low_byte},
                                  {mlx5::Field{104, 24}.at(16), pd},
                                  {mlx5::Field{128, 64}.at(16), kStart},
                                  {mlx5::Field{192, 64}.at(16), kBytes},
                                  {mlx5::Field{475, 5}.at(16), 12},
                                  {kPage, base + kData + 2 * kGuestPage},
                                  {{kPage.bit + 64, 64}, base + kData},
                                  {{kPage.bit + 128, 64}, base + kData + kGuestPage}});
    list_bytes = 8;
    key = number() << 8 | low_byte;
    return refusal;
  }
  // The byte of the region at `offset`.
  std::uint8_t* byte(std::uint64_t offset) {
    constexpr std::uint64_t kOrder[] = {2, 0, 1};
    const std::uint64_t in_pages = kStart % kGuestPage + offset;
    return at(kData + kOrder[in_pages / kGuestPage] * kGuestPage + in_pages % kGuestPage);
  }
  void make(std::uint64_t service) {
    REQUIRE(run(Opcode::alloc_uar) == Refusal::none);
    uar = number();
    REQUIRE(run(Opcode::create_eq, {{{227, 5}, 2}, {{232, 24}, uar}, {kPage, base + kEq}}) ==
            Refusal::none);
    eqn = mlx5::get(out, {88, 8});
    for (std::uint64_t i = 0; i < 16; ++i) at(kCq)[64 * i + 63] = mlx5::kUnwrittenOwner;
    REQUIRE(run(Opcode::create_cq, {{mlx5::cq::kUarPage, uar},
                                    {mlx5::cq::kEqn, eqn},
                                    {mlx5::cq::kLogSize, 4},
                                    {mlx5::cq::kDbrAddress, base + kRecords + 64},
                                    {kPage, base + kCq}}) == Refusal::none);
    cqn = number();
    word(kRecords + 68, 2u << 28);  // never armed
    REQUIRE(run(Opcode::alloc_pd) == Refusal::none);
    pd = number();
    REQUIRE(run(Opcode::create_qp, {{mlx5::qp::kService, service},
                                    {mlx5::qp::kUarPage, uar},
                                    {mlx5::qp::kPd, pd},
                                    {mlx5::qp::kSendCq, cqn},
                                    {mlx5::qp::kReceiveCq, cqn},
                                    {mlx5::qp::kLogSqSize, 4},
                                    {mlx5::qp::kLogRqSize, 2},
                                    {mlx5::qp::kDbrAddress, base + kRecords},
                                    {kPage, base + kQp}}) == Refusal::none);
    qpn = number();
  }
  void connect(std::uint64_t to, std::uint64_t lid) {
    const Value own{mlx5::kNumber, qpn}, port{mlx5::qp::kPort, 1};
    REQUIRE(run(Opcode::rst2init_qp, {own, port, {mlx5::qp::kRwe, 1}}) == Refusal::none);
    REQUIRE(
        run(Opcode::init2rtr_qp,
            {own, {mlx5::qp::kMtu, 5}, {mlx5::qp::kRemoteQpn, to}, {mlx5::qp::kRemoteLid, lid}}) ==
        Refusal::none);
    REQUIRE(run(Opcode::rtr2rts_qp, {own, {mlx5::qp::kRetryCount, 7}}) == Refusal::none);
  }
  std::atomic_ref<std::uint32_t> word_at(std::uint64_t place) {
    return std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(at(place)));
  }
  void word(std::uint64_t place, std::uint32_t value) {
    word_at(place).store(__builtin_bswap32(value), std::memory_order_release);
  }
  void ring(std::uint32_t register_at, std::uint64_t value) {
    std::atomic_ref<std::uint64_t>(
        *reinterpret_cast<std::uint64_t*>(bar.data() + uar * kGuestPage + register_at))
        .store(__builtin_bswap64(value));
  }
  // An entry of 64 bytes behind the 4 receives of 16, at place `index`.
  void send(std::uint32_t index, std::uint32_t opcode, std::uint64_t remote, std::uint64_t rkey,
            std::uint32_t bytes, std::uint64_t from) {
    const std::span<std::uint8_t> entry(at(kQp + 64 + 64 * index), 64);
    std::fill(entry.begin(), entry.end(), std::uint8_t{0});
    mlx5::set(entry, {0, 32}, index << 8 | opcode);
    mlx5::set(entry, {32, 32}, qpn << 8 | 3);
    mlx5::set(entry, {64, 32}, 8);  // a completion
    mlx5::set(entry, {128, 64}, remote);
    mlx5::set(entry, {192, 32}, rkey);
    mlx5::set(entry, {256, 32}, bytes);
    mlx5::set(entry, {288, 32}, key);
    mlx5::set(entry, {320, 64}, from);
    word(kRecords + 4, index + 1);
    ring(0x800, 1);
  }
  // A datagram, which takes two blocks from `index` on.  `lid`: of a port, or of a group.
  void send_datagram(std::uint32_t index, std::uint64_t to, std::uint64_t lid, std::uint64_t qkey,
                     std::uint32_t bytes, bool routed = false) {
    const std::span<std::uint8_t> entry(at(kQp + 64 + 64 * index), 128);
    std::fill(entry.begin(), entry.end(), std::uint8_t{0});
    mlx5::set(entry, {0, 32}, index << 8 | 0x0a);
    mlx5::set(entry, {32, 32}, qpn << 8 | 5);
    mlx5::set(entry, {64, 32}, 8);  // a completion
    mlx5::set(entry, {128, 32}, qkey);
    mlx5::set(entry, {200, 24}, to);
    mlx5::set(entry, {240, 16}, lid);
    mlx5::set(entry, {353, 1}, routed ? 1 : 0);
    mlx5::set(entry, {384, 64}, kGroup[0]);
    mlx5::set(entry, {448, 64}, kGroup[1]);
    mlx5::set(entry, {512, 32}, bytes);
    mlx5::set(entry, {544, 32}, key);
    mlx5::set(entry, {576, 64}, kStart);
    word(kRecords + 4, index + 2);
    ring(0x800, 1);
  }
  static constexpr std::uint64_t kGroup[] = {0xff12401bffff0000, 0xffffffff};
  // Receive `index` takes so many bytes at the beginning of the region.
  void receive(std::uint32_t index, std::uint32_t bytes) {
    const std::span<std::uint8_t> entry(at(kQp + 16 * index), 16);
    mlx5::set(entry, {0, 32}, bytes);
    mlx5::set(entry, {32, 32}, key);
    mlx5::set(entry, {64, 64}, kStart);
    word(kRecords, index + 1);
  }
  void be_ready(std::uint64_t qkey) {
    const Value own{mlx5::kNumber, qpn};
    REQUIRE(run(Opcode::rst2init_qp, {own, {mlx5::qp::kPort, 1}, {mlx5::qp::kQkey, qkey}}) ==
            Refusal::none);
    REQUIRE(run(Opcode::init2rtr_qp, {own}) == Refusal::none);
    REQUIRE(run(Opcode::rtr2rts_qp, {own, {mlx5::qp::kNextSendPsn, 0x123}}) == Refusal::none);
    REQUIRE(run(Opcode::query_qp, {own}) == Refusal::none);
    CHECK(mlx5::get(out, mlx5::qp::kQkey) == qkey);
    CHECK(mlx5::get(out, mlx5::qp::kNextSendPsn) == 0x123);
  }
  // The kind of completion `index`, or -1 when none comes.
  int completion(std::uint32_t index) {
    for (int i = 0; i < 5000; ++i) {
      // As it was written: order holds between accesses of one size.
      const auto last = static_cast<std::uint8_t>(
          word_at(kCq + 64 * index + 60).load(std::memory_order_acquire) >> 24);
      if (last != mlx5::kUnwrittenOwner) return last >> 4;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return -1;
  }
  unsigned syndrome(std::uint32_t index) { return at(kCq)[64 * index + 55]; }
  bool interrupted() {
    for (int i = 0; i < 5000 && interrupts == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return interrupts != 0;
  }
};

TEST_CASE("data goes from scattered pages of one function to those of the other") {
  Machine machine;
  End a(machine, 0, 0x100000), b(machine, 1, 0x200000);
  a.make(0);
  b.make(0);
  REQUIRE(a.make_key(0x5a, 0) == Refusal::none);
  REQUIRE(b.make_key(0xa5, 1) == Refusal::none);
  a.connect(b.qpn, b.data.lid());
  b.connect(a.qpn, a.data.lid());
  for (std::uint64_t i = 0; i < End::kBytes; ++i) *a.byte(i) = static_cast<std::uint8_t>(i * 7 / 3);
  // Somebody arms another queue of the page: that is nothing to one that was never armed.
  a.ring(0x20, std::uint64_t{1} << 60 | (a.cqn + 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  a.send(0, 8, End::kStart, b.key, End::kBytes, End::kStart);
  REQUIRE(a.completion(0) == 0);
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < End::kBytes; ++i) wrong += *b.byte(i) != *a.byte(i) ? 1 : 0;
  CHECK(wrong == 0);
  CHECK(a.interrupts == 0);  // it was never armed

  // Armed: the next is told.  The word of another queue came after this one's.
  a.word(End::kRecords + 68, 1u << 28 | 1);
  a.ring(0x20, std::uint64_t{1} << 60 | (a.cqn + 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(a.interrupts == 0);  // there is nothing that the program has not seen
  a.send(1, 8, End::kStart, b.key, 8, End::kStart);
  REQUIRE(a.completion(1) == 0);
  CHECK(a.interrupted());
  CHECK(a.interrupts == 1);
  CHECK(mlx5::get({a.at(End::kEq + 32), 28}, {200, 24}) == a.cqn);

  // Behind the end.
  const std::uint64_t behind = End::kStart + End::kBytes - 7;
  a.send(2, 8, behind, b.key, 8, End::kStart);
  CHECK(a.completion(2) == 13);
  CHECK(a.syndrome(2) == static_cast<unsigned>(mlx5::Syndrome::remote_access));
  // That has ended both, and the responder's driver is told.
  REQUIRE(b.run(Opcode::query_qp, {{mlx5::kNumber, b.qpn}}) == Refusal::none);
  CHECK(mlx5::get(b.out, mlx5::qp::kState) == static_cast<unsigned>(mlx5::State::error));
  const auto told = b.data.next_event();
  REQUIRE(told);
  CHECK(told->event == Event::access_violated);
  CHECK(told->number == b.qpn);
}

TEST_CASE("what the kernel gives its own queue pairs completes, and is flushed in error") {
  Machine machine;
  End a(machine, 0, 0x100000);
  a.make(8);  // QP1
  REQUIRE(a.make_key(0x5a, 0) == Refusal::none);
  a.be_ready(0x80010000);
  a.send_datagram(0, 1, 0x17, 0x80010000, 8);  // nobody's LID
  CHECK(a.completion(0) == 0);
  a.word(End::kRecords, 3);  // receives, of which there is room for 4
  REQUIRE(a.run(Opcode::qp_2err, {{mlx5::kNumber, a.qpn}}) == Refusal::none);
  for (std::uint32_t i = 1; i <= 3; ++i) {
    CHECK(a.completion(i) == 14);
    CHECK(a.syndrome(i) == static_cast<unsigned>(mlx5::Syndrome::flushed));
  }
  a.send_datagram(2, 1, 0x17, 0x80010000, 8);
  CHECK(a.completion(4) == 13);
  CHECK(a.syndrome(4) == static_cast<unsigned>(mlx5::Syndrome::flushed));
}

TEST_CASE("datagrams come to who has their key and a receive, others are lost") {
  Machine machine;
  End a(machine, 0, 0x100000), b(machine, 1, 0x200000);
  for (End* end : {&a, &b}) {
    end->make(2);
    REQUIRE(end->make_key(0x5a, 0) == Refusal::none);
    end->be_ready(0x1234);
  }
  for (std::uint64_t i = 0; i < 100; ++i) *a.byte(i) = static_cast<std::uint8_t>(i + 1);
  a.send_datagram(0, b.qpn, b.data.lid(), 0x1234, 100);  // no receive
  REQUIRE(a.completion(0) == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  b.receive(0, 200);
  a.send_datagram(2, b.qpn, b.data.lid(), 0x4321, 50);  // another key
  a.send_datagram(4, b.qpn, b.data.lid(), 0x1234, 60);
  REQUIRE(b.completion(0) == 2);
  const Bytes told(b.at(End::kCq), 64);
  CHECK(mlx5::get(told, {352, 32}) == 100);  // with room for the header
  CHECK(mlx5::get(told, {200, 24}) == a.qpn);
  CHECK(mlx5::get(told, {176, 16}) == a.data.lid());
  CHECK(mlx5::get(told, {194, 2}) == 0);  // no header
  CHECK(mlx5::get(told, {304, 16}) == 0xffff);
  CHECK(*b.byte(0) == 0);
  CHECK(*b.byte(40) == 1);
  CHECK(*b.byte(99) == 60);
  CHECK(*b.byte(100) == 0);
  REQUIRE(a.completion(2) == 0);

  // To a group: with a header, to those who are in it.
  const End::Value own{mlx5::kNumber, b.qpn}, high{{128, 64}, End::kGroup[0]},
      low{{192, 64}, End::kGroup[1]};
  CHECK(b.run(Opcode::detach_from_mcg, {own, high, low}) == Refusal::group);
  REQUIRE(b.run(Opcode::attach_to_mcg, {own, high, low}) == Refusal::none);
  CHECK(b.run(Opcode::attach_to_mcg, {own, high, low}) == Refusal::group);
  b.receive(1, 200);
  a.send_datagram(6, 0xffffff, 0xc001, 0x1234, 30, true);
  REQUIRE(b.completion(1) == 2);
  CHECK(mlx5::get({b.at(End::kCq) + 64, 64}, {194, 2}) == 1);
  CHECK(*b.byte(0) == 0x60);
  CHECK(*b.byte(24) == 0xff);
  CHECK(*b.byte(69) == 30);

  // Longer than its receive: the queue pair has failed.
  b.receive(2, 50);
  a.send_datagram(8, b.qpn, b.data.lid(), 0x1234, 30);
  CHECK(b.completion(2) == 14);
  CHECK(b.syndrome(2) == static_cast<unsigned>(mlx5::Syndrome::local_length));
}

TEST_CASE("a key is nobody's until a work request makes it one, and again when it is free") {
  Machine machine;
  End a(machine, 0, 0x100000);
  a.make(12);
  a.be_ready(0);
  const mlx5::Field domain{104, 24}, mode{22, 2}, by_free{1, 1};
  REQUIRE(a.run(Opcode::create_mkey, {{mode.at(16), 1}, {by_free.at(16), 1}}) == Refusal::none);
  const std::uint64_t index = a.number();
  // Four segments in front, the context, two pages.
  const auto change = [&](std::uint32_t at, std::uint64_t changed, std::uint64_t free) {
    const std::span<std::uint8_t> entry(a.at(End::kQp + 64 + 64 * at), 192);
    std::fill(entry.begin(), entry.end(), std::uint8_t{0});
    mlx5::set(entry, {0, 32}, at << 8 | 0x25);
    mlx5::set(entry, {32, 32}, a.qpn << 8 | 9);
    mlx5::set(entry, {64, 32}, 8);
    mlx5::set(entry, {96, 32}, index << 8);
    mlx5::set(entry, {128, 8}, 0x80);  // inline
    mlx5::set(entry, {160, 16}, free != 0 ? 0 : 1);
    mlx5::set(entry, {192, 64}, changed);
    const std::uint32_t context = 64;
    mlx5::set(entry, by_free.at(context), free);
    mlx5::set(entry, mlx5::Field{20, 1}.at(context), 1);
    mlx5::set(entry, mlx5::Field{56, 8}.at(context), 0x77);
    mlx5::set(entry, domain.at(context), a.pd);
    mlx5::set(entry, mlx5::Field{128, 64}.at(context), 0x10000);
    mlx5::set(entry, mlx5::Field{192, 64}.at(context), 2 * kGuestPage);
    mlx5::set(entry, mlx5::Field{475, 5}.at(context), 12);
    mlx5::set(entry, {1024, 64}, (a.base + End::kData + kGuestPage) | 3);
    mlx5::set(entry, {1088, 64}, (a.base + End::kData) | 3);
    a.word(End::kRecords + 4, at + 3);
    a.ring(0xd00, 1);  // as the kernel rings its own
  };
  const auto reads = [&](std::uint64_t address, std::uint32_t key, std::uint8_t& byte) {
    return soft::read_region(a.data.keys().domain(static_cast<std::uint32_t>(a.pd)), address, key,
                             &byte, 1);
  };
  const auto key = static_cast<std::uint32_t>(index << 8 | 0x77);
  constexpr std::uint64_t kAll =
      1u << 0 | 1u << 1 | 1u << 6 | 1u << 7 | 1u << 13 | 1u << 20 | 1u << 29;
  std::uint8_t byte = 0;
  CHECK_FALSE(reads(0x10000, static_cast<std::uint32_t>(index << 8), byte));
  change(0, kAll, 0);
  REQUIRE(a.completion(0) == 0);
  *a.at(End::kData + kGuestPage + 5) = 0x42;
  *a.at(End::kData) = 0x43;
  CHECK(reads(0x10005, key, byte));
  CHECK(byte == 0x42);
  CHECK(reads(0x10000 + kGuestPage, key, byte));
  CHECK(byte == 0x43);
  CHECK_FALSE(reads(0x10000 + 2 * kGuestPage, key, byte));
  change(3, 1u << 29, 1);
  REQUIRE(a.completion(1) == 0);
  CHECK_FALSE(reads(0x10005, key, byte));
  change(6, 1u << 12, 0);  // a signature, which is not made
  CHECK(a.completion(2) == 13);
}

TEST_CASE("the subnet's manager tells the path between two ports, and of none to others") {
  SubnetManager manager;
  manager.add({7, 0x700});
  manager.add({9, 0x900});
  std::vector<std::uint8_t> mad(256);
  const auto set = [&](std::uint32_t bit, std::uint32_t width, std::uint64_t value) {
    mlx5::set(mad, {bit, width}, value);
  };
  const auto answer = [&](std::uint32_t bit, std::uint32_t width) {
    const auto got = manager.answer(mad);
    REQUIRE(got);
    return mlx5::get(*got, {bit, width});
  };
  set(8, 8, 3), set(24, 8, 1), set(128, 16, 0x35);
  constexpr std::uint32_t kRecord = 56 * 8;
  set(kRecord + 64, 64, kLinkLocal), set(kRecord + 128, 64, 0x900);
  set(kRecord + 192, 64, kLinkLocal), set(kRecord + 256, 64, 0x700);
  CHECK(answer(24, 8) == 0x81);
  CHECK(answer(32, 16) == 0);
  CHECK(answer(kRecord + 320, 16) == 9);
  CHECK(answer(kRecord + 336, 16) == 7);
  set(kRecord + 128, 64, 0x901);
  CHECK(answer(32, 16) == 0x300);
  set(128, 16, 0x38);  // a group that nobody has joined, then one that somebody has
  CHECK(answer(32, 16) == 0x300);
  set(24, 8, 2);
  CHECK(answer(kRecord + 288, 16) == 0xc000);
  set(24, 8, 1);
  CHECK(answer(kRecord + 288, 16) == 0xc000);
  set(24, 8, 0x81);
  CHECK_FALSE(manager.answer(mad));
}

TEST_CASE("keys of memory that is not there, or of a kind that is not made, are refused") {
  Machine machine;
  End a(machine, 0, 0x100000);
  a.make(0);
  const End::Value by_pages{mlx5::Field{22, 2}.at(16), 1}, pd{mlx5::Field{104, 24}.at(16), a.pd};
  const End::Value log_page{mlx5::Field{475, 5}.at(16), 12}, page{End::kPage, 0x300000};
  const auto length = [](std::uint64_t n) { return End::Value{mlx5::Field{192, 64}.at(16), n}; };
  const auto made = [&](std::initializer_list<End::Value> values) {
    return a.run(Opcode::create_mkey, values);
  };
  CHECK(made({by_pages, pd, log_page, page, length(4096)}) == Refusal::none);
  CHECK(made({by_pages, pd, log_page, page, length(4097)}) == Refusal::key_pages);
  CHECK(made({by_pages, pd, log_page, page, length(0)}) == Refusal::key_pages);
  CHECK(made({by_pages, pd, log_page, {End::kPage, kMemory}, length(8)}) == Refusal::no_page);
  CHECK(made({by_pages, log_page, page, length(8), {mlx5::Field{104, 24}.at(16), 77}}) ==
        Refusal::no_pd);
  CHECK(made({by_pages, pd, page, length(8)}) == Refusal::key_mode);
  CHECK(made({{mlx5::Field{22, 2}.at(16), 2}, pd, log_page, page, length(8)}) == Refusal::key_mode);
}

}  // namespace
}  // namespace twinpath::softhca::pci
