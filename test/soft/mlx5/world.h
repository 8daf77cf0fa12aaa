#pragma once
// A modelled device with what one queue pair needs, and valid commands for it.  Commands are
// written by byte and bit as the adapter's reference manual has them, not by the model's own table.
#include <atomic>
#include <cstring>
#include <vector>

#include "plugin/fabric/soft/mlx5/device.h"
#include "tools/softhca/mlx5/selftest_commands.h"

namespace twinpath::soft::mlx5 {

using softhca::Bytes;

struct Answered {
  Refusal refusal;
  Bytes out;
  unsigned status() const { return out.get(0, 31, 24); }
  std::uint32_t number() const { return out.get(8, 23, 0); }
};

struct World {
  static constexpr std::uint32_t kPd = 7, kSrq = 9;
  static constexpr std::uint64_t kQueueBytes = 64 * 1024;

  explicit World(bool on_ethernet = true, const Variant& variant = {})
      : ethernet(on_ethernet), facts{ethernet, 2, 8, 4, {3, 4}, variant} {
    parts.uar_page = device.add_uar();
    parts.cq_umem = device.add_umem({0x10000, kQueueBytes, 4096});
    parts.cq_dbr_umem = device.add_umem({0x40000, 8, 4096});
    parts.sq_umem = device.add_umem({0x50000, kQueueBytes, 4096});
    parts.dbr_umem = device.add_umem({0x80000, 64, 4096});
    parts.eqn = kFirstEventQueue;
    parts.pdn = kPd;
    device.add_verbs_object({Kind::pd, kPd});
    device.add_verbs_object({Kind::srq, kSrq});
  }

  Answered run(Bytes in, std::size_t answer_bytes = 16) {
    Answered a{Refusal::none, Bytes(answer_bytes)};
    std::memset(a.out.data(), 0xa5, answer_bytes);
    a.refusal = device.execute({in.data(), in.size()}, {a.out.data(), a.out.size()});
    return a;
  }

  Bytes cq() const { return softhca::create_cq(parts, 7); }
  Bytes qp() const { return softhca::create_qp(parts, cqn, 7); }
  Bytes init() const { return softhca::to_init(qpn); }
  Bytes receive() const {
    const std::uint8_t gid[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2};
    const std::uint8_t mac[6] = {2, 0, 0, 0, 0, 1};
    return softhca::to_receive(qpn, ethernet, gid, mac);
  }
  Bytes send() const { return softhca::to_send(qpn); }
  Bytes query() const { return softhca::command(0x50b, 16).put(8, 23, 0, qpn); }

  void make_cq() { cqn = run(cq()).number(); }
  // A queue pair in `state`.
  void make_qp(State state = State::reset) {
    if (cqn == 0) make_cq();
    qpn = run(qp()).number();
    if (state == State::reset) return;
    (void)run(init());
    if (state == State::error) (void)run(softhca::modify_qp(0x507, qpn));
    if (state == State::init || state == State::error) return;
    (void)run(receive());
    if (state == State::ready_to_receive) return;
    (void)run(send());
  }
  // As QUERY_QP tells it.
  State state() { return static_cast<State>(run(query(), 272).out.get(0x18, 31, 28)); }

  bool ethernet;
  std::atomic<std::uint32_t> numbers{0x100};
  DeviceFacts facts;
  Device device{facts,
                [](unsigned port, unsigned index, std::array<std::uint8_t, 16>& gid) {
                  gid = {0xfe, 0x80};
                  gid[15] = static_cast<std::uint8_t>(16 * port + index);
                  return port <= 2 && index < 8;
                },
                numbers};
  softhca::Parts parts{};
  std::uint32_t cqn = 0, qpn = 0;
};

}  // namespace twinpath::soft::mlx5
