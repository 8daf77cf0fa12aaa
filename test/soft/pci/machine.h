#pragma once
// Functions without a machine: its memory, and on each function what a driver and a program make
// and do.
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

namespace twinpath::softhca::pci::test {

using mlx5::Opcode;
using mlx5::Refusal;

inline constexpr std::uint64_t kMemory = 4 << 20;

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
  std::uint64_t uar = 0, eqn = 0, cqn = 0, pd = 0, qpn = 0, key = 0, srqn = 0;

  // Places from `base` on.
  static constexpr std::uint64_t kEq = 0, kCq = 0x1000, kQp = 0x2000, kRecords = 0x3000,
                                 kShared = 0x4000, kNewCq = 0x5000, kData = 0x10000;
  static constexpr std::uint64_t kStart = 0x7fff00000100, kBytes = 3 * kGuestPage - 0x200;
  static constexpr mlx5::Field kPage{2176, 64};

  End(Machine& on, unsigned number, std::uint64_t at)
      : machine(on),
        base(at),
        data(on.verbs, on.contexts[number], *on.memory, bar, on.subnet),
        function(number, 32, *on.memory, events, &data) {}

  std::uint8_t* at(std::uint64_t place) { return machine.bytes.data() + base + place; }
  Refusal run(Opcode opcode, const std::vector<Value>& values = {}) {
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
    make_objects();
    make_queue_pair(service);
  }
  void make_objects() {
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
  }
  // With receives of its own, unless share() was called.
  void make_queue_pair(std::uint64_t service) {
    REQUIRE(run(Opcode::create_qp, {{mlx5::qp::kService, service},
                                    {mlx5::qp::kUarPage, uar},
                                    {mlx5::qp::kPd, pd},
                                    {mlx5::qp::kSendCq, cqn},
                                    {mlx5::qp::kReceiveCq, cqn},
                                    {mlx5::qp::kLogSqSize, 4},
                                    {mlx5::qp::kLogRqSize, 2},
                                    {mlx5::qp::kRqType, srqn != 0 ? 1u : 0u},
                                    {mlx5::qp::kSrq, srqn},
                                    {mlx5::qp::kDbrAddress, base + kRecords},
                                    {kPage, base + kQp}}) == Refusal::none);
    qpn = number();
  }
  // Receives for several queue pairs: 8 entries of 32 bytes, made as the driver makes a program's.
  void share() {
    REQUIRE(run(Opcode::create_rmp, {{{264, 4}, 1},  // ready
                                     {kRmpPd, pd},
                                     {kRmpLogEntry, 5},
                                     {kRmpLogEntries, 3},
                                     {kRmpRecord, base + kRecords + 128},
                                     {kPage, base + kShared}}) == Refusal::none);
    srqn = number();
  }
  static constexpr mlx5::Field kRmpPd{712, 24}, kRmpLogEntry{908, 4}, kRmpLogEntries{923, 5},
      kRmpRecord{768, 64}, kRmpLimit{688, 16};
  // Entry `index` takes so many bytes from `offset` of the region on.
  void give(std::uint64_t index, std::uint64_t next, std::uint64_t offset, std::uint64_t bytes) {
    const std::span<std::uint8_t> entry(at(kShared + 32 * index), 32);
    mlx5::set(entry, {16, 16}, next);
    mlx5::set(entry, {128, 32}, bytes);
    mlx5::set(entry, {160, 32}, key);
    mlx5::set(entry, {192, 64}, kStart + offset);
    word(kRecords + 128, ++given);
  }
  std::uint32_t given = 0;
  // The event told last by the event queue, from its type on; nothing when none comes.
  std::optional<DataPath::Told> wait_for_event() {
    for (int i = 0; i < 5000; ++i) {
      if (auto told = data.next_event(); told && told->event) return told;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return std::nullopt;
  }
  // `timeout`: as queue pairs have it; 0: it waits for ever.
  void connect(std::uint64_t to, std::uint64_t lid, std::uint64_t timeout = 0) {
    const Value own{mlx5::kNumber, qpn}, port{mlx5::qp::kPort, 1};
    REQUIRE(run(Opcode::rst2init_qp, {own, port, {mlx5::qp::kRwe, 1}}) == Refusal::none);
    REQUIRE(
        run(Opcode::init2rtr_qp,
            {own, {mlx5::qp::kMtu, 5}, {mlx5::qp::kRemoteQpn, to}, {mlx5::qp::kRemoteLid, lid}}) ==
        Refusal::none);
    REQUIRE(run(Opcode::rtr2rts_qp,
                {own, {mlx5::qp::kRetryCount, 7}, {mlx5::qp::kAckTimeout, timeout}}) ==
            Refusal::none);
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
  // The send entry at place `index`, behind the 4 receives of 16: of so many units of 16 bytes,
  // with nothing but its head, which asks for a completion.
  std::span<std::uint8_t> new_entry(std::uint32_t index, std::uint32_t opcode,
                                    std::uint32_t units) {
    const std::span<std::uint8_t> entry(at(kQp + 64 + 64 * (index % 16)),
                                        std::size_t{64} * ((units + 3) / 4));
    std::fill(entry.begin(), entry.end(), std::uint8_t{0});
    mlx5::set(entry, {0, 32}, index << 8 | opcode);
    mlx5::set(entry, {32, 32}, qpn << 8 | units);
    mlx5::set(entry, {64, 32}, 8);
    return entry;
  }
  void send(std::uint32_t index, std::uint32_t opcode, std::uint64_t remote, std::uint64_t rkey,
            std::uint32_t bytes, std::uint64_t from) {
    const std::span<std::uint8_t> entry = new_entry(index, opcode, 3);
    mlx5::set(entry, {128, 64}, remote);
    mlx5::set(entry, {192, 32}, rkey);
    mlx5::set(entry, {256, 32}, bytes);
    mlx5::set(entry, {288, 32}, key);
    mlx5::set(entry, {320, 64}, from);
    word(kRecords + 4, index + 1);
    ring(0x800, 1);
  }
  // A message of so many bytes from the region's beginning.
  void send_message(std::uint32_t index, std::uint32_t bytes, bool solicited = false) {
    const std::span<std::uint8_t> entry = new_entry(index, 0x0a, 2);
    if (solicited) mlx5::set(entry, kSolicited, 1);
    mlx5::set(entry, {128, 32}, bytes);
    mlx5::set(entry, {160, 32}, key);
    mlx5::set(entry, {192, 64}, kStart);
    word(kRecords + 4, index + 1);
    ring(0x800, 1);
  }
  // A datagram, which takes two blocks from `index` on.  `lid`: of a port, or of a group.
  void send_datagram(std::uint32_t index, std::uint64_t to, std::uint64_t lid, std::uint64_t qkey,
                     std::uint32_t bytes, bool routed = false, bool solicited = false) {
    const std::span<std::uint8_t> entry = new_entry(index, 0x0a, 5);
    if (solicited) mlx5::set(entry, kSolicited, 1);
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
  static constexpr mlx5::Field kSolicited{94, 1};
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
  int completion(std::uint32_t index, std::uint64_t queue = kCq) {
    for (int i = 0; i < 5000; ++i) {
      // As it was written: order holds between accesses of one size.
      const auto last = static_cast<std::uint8_t>(
          word_at(queue + 64 * index + 60).load(std::memory_order_acquire) >> 24);
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

// The ends of one connection.
struct Ends {
  Machine machine;
  End a{machine, 0, 0x100000}, b{machine, 1, 0x200000};

  void make_keys() {
    REQUIRE(a.make_key(0x5a, 0) == Refusal::none);
    REQUIRE(b.make_key(0xa5, 1) == Refusal::none);
  }
  void connect() {
    a.connect(b.qpn, b.data.lid());
    b.connect(a.qpn, a.data.lid());
  }
};

// Each with receives of its own, and reliable.
struct Connected : Ends {
  Connected() {
    a.make(0);
    b.make(0);
    make_keys();
    connect();
  }
  // Eight bytes from a to b.
  void write(std::uint32_t index) { a.send(index, 8, End::kStart, b.key, 8, End::kStart); }
};

}  // namespace twinpath::softhca::pci::test
