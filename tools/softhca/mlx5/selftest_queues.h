#pragma once
// A queue pair made by commands, for softhca-mlx5-selftest, driven as a kernel or a driver would:
// entries written to memory, records and doorbell stored, completions polled.  One thread.
#include <dlfcn.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "tools/softhca/mlx5/selftest_library.h"

namespace twinpath::softhca {

struct DevxQueue {
  static constexpr unsigned kLog = 4;  // 16 blocks, 16 completions
  static constexpr std::uint32_t kBlocks = 1u << kLog;
  static constexpr std::uint32_t kReceives = 8;  // of 64 bytes

  Library& lib;
  ibv_context* context;
  bool ethernet;
  mlx5dv_devx_uar* uar = nullptr;
  mlx5dv_devx_umem *cq_umem = nullptr, *sq_umem = nullptr, *records_umem = nullptr;
  mlx5dv_devx_obj *cq = nullptr, *qp = nullptr;
  std::uint32_t cqn = 0, qpn = 0, produced = 0, received = 0, consumed = 0;
  // Of the host, or of the GPU that a stub plays; `host` is where this program sees it.
  static constexpr std::size_t kPage = 4096;
  alignas(kPage) std::uint8_t own[3 * kPage] = {};
  std::uint8_t* host = own;
  std::uint64_t device = reinterpret_cast<std::uintptr_t>(own);
  std::uint8_t* queue = nullptr;  // receives, then sends
  std::uint8_t* completions = nullptr;
  std::uint32_t* records = nullptr;  // of the queue pair, of the completion queue
  std::uint8_t last[64] = {};

  DevxQueue(Library& l, ibv_context* c, bool e) : lib(l), context(c), ethernet(e) {
    using Gpu = bool (*)(std::size_t, std::uint64_t*, void**);
    const auto gpu = reinterpret_cast<Gpu>(dlsym(RTLD_DEFAULT, "softhca_stub_gpu_memory"));
    void* seen = nullptr;
    if (gpu != nullptr && gpu(3 * kPage, &device, &seen)) host = static_cast<std::uint8_t*>(seen);
    queue = host;
    completions = host + kPage;
    records = reinterpret_cast<std::uint32_t*>(host + 2 * kPage);
    std::memset(completions, 0xf1, 64 * kBlocks);
  }

  // `page`: another's, to share it.
  bool make(std::uint32_t pdn, mlx5dv_devx_uar* page = nullptr) {
    uar = page != nullptr ? page : lib.devx_alloc_uar(context, 1u << 31);
    cq_umem = lib.umem(context, seen_by_device(kPage), 64 * kBlocks);
    sq_umem = lib.umem(context, seen_by_device(0), kPage);
    records_umem = lib.umem(context, seen_by_device(2 * kPage), 16);
    if (uar == nullptr || cq_umem == nullptr || sq_umem == nullptr || records_umem == nullptr)
      return false;
    Parts p{uar->page_id,
            cq_umem->umem_id,
            records_umem->umem_id,
            sq_umem->umem_id,
            records_umem->umem_id,
            0,
            pdn};
    if (lib.devx_query_eqn(context, 0, &p.eqn) != 0) return false;
    cq = lib.make(context, create_cq(p, kLog).put(0x10, 17, 17, 0).put(0x4c, 31, 0, 8), cqn);
    constexpr std::size_t kContext = 0x18;
    qp = lib.make(context,
                  create_qp(p, cqn, kLog)
                      .put(kContext + 0x9c, 23, 0, cqn)
                      .put(kContext + 0xac, 26, 24, 0)
                      .put(kContext + 0x08, 22, 19, 3)   // 8 receives
                      .put(kContext + 0x08, 18, 16, 2),  // of 64 bytes
                  qpn);
    return cq != nullptr && qp != nullptr;
  }

  void* seen_by_device(std::size_t place) const { return reinterpret_cast<void*>(device + place); }

  bool join(const DevxQueue& to, const std::uint8_t* gid, std::uint32_t lid) {
    const std::uint8_t mac[6] = {2, 0, 0, 0, 0, 1};
    Bytes receive = to_receive(qpn, ethernet, gid, mac).put(0x18 + 0x14, 23, 0, to.qpn);
    if (!ethernet) receive.put(0x18 + 0x18 + 0x04, 15, 0, lid);
    return lib.change(qp, to_init(qpn)) == 0 && lib.change(qp, receive) == 0 &&
           lib.change(qp, to_send(qpn).put(0x18 + 0x18 + 0x08, 31, 27, 10)) == 0;
  }

  // Writes an entry (whole blocks) with its index and number.
  void post(Bytes entry, std::uint32_t opcode, unsigned segments) {
    entry.put(0, 23, 8, produced & 0xffff).put(0, 7, 0, opcode);
    entry.put(4, 31, 8, qpn).put(4, 7, 0, segments);
    for (std::size_t at = 0; at < entry.size(); at += 64, ++produced)
      std::memcpy(queue + 64 * kReceives + 64 * (produced % kBlocks), entry.data() + at, 64);
  }

  // The record, and then the word: only the last of several stays.
  void ring(bool word = true) {
    store(records[1], produced & 0xffff);
    if (!word) return;
    Bytes db(8);
    db.put(0, 23, 8, produced & 0xffff).put(4, 31, 8, qpn);
    std::uint64_t value = 0;
    std::memcpy(&value, db.data(), sizeof value);
    std::atomic_ref<std::uint64_t>(*static_cast<std::uint64_t*>(uar->reg_addr))
        .store(value, std::memory_order_release);
  }

  void receive(std::uint64_t address, std::uint32_t bytes, std::uint32_t key) {
    Bytes entry(64);
    piece(entry, 0, address, bytes, key).put(20, 31, 0, 0x100);  // and no more
    std::memcpy(queue + 64 * (received++ % kReceives), entry.data(), 64);
    store(records[0], received & 0xffff);
  }

  // Waits for the next completion; its opcode, or 15 after ten seconds without.
  unsigned wait() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    std::uint8_t* const entry = completions + 64 * (consumed % kBlocks);
    const unsigned lap = consumed / kBlocks & 1;
    while (std::chrono::steady_clock::now() < end) {
      const std::uint8_t owner = std::atomic_ref<std::uint8_t>(entry[63]).load();
      if ((owner & 1) != lap || owner >> 4 == 15) continue;
      std::memcpy(last, entry, sizeof last);
      ++consumed;
      store(records[2], consumed & 0xffffff);
      return owner >> 4;
    }
    return 15;
  }
  bool quiet() const {
    return (completions[64 * (consumed % kBlocks) + 63] & 1) != (consumed / kBlocks & 1);
  }
  std::uint32_t last_index() const { return std::uint32_t{last[60]} << 8 | last[61]; }

  static Bytes& piece(Bytes& e, std::size_t at, std::uint64_t address, std::uint32_t bytes,
                      std::uint32_t key) {
    return e.put(at, 31, 0, bytes)
        .put(at + 4, 31, 0, key)
        .put(at + 8, 31, 0, static_cast<std::uint32_t>(address >> 32))
        .put(at + 12, 31, 0, static_cast<std::uint32_t>(address));
  }
  static void store(std::uint32_t& record, std::uint32_t value) {
    std::atomic_ref<std::uint32_t>(record).store(__builtin_bswap32(value),
                                                 std::memory_order_release);
  }

  // 0 when all went in order.
  int end(bool own_page = true) {
    int rc = qp == nullptr ? 1 : lib.devx_obj_destroy(qp);
    rc |= cq == nullptr ? 1 : lib.devx_obj_destroy(cq);
    for (mlx5dv_devx_umem* u : {cq_umem, sq_umem, records_umem})
      rc |= u == nullptr ? 1 : lib.devx_umem_dereg(u);
    if (own_page && uar != nullptr) lib.devx_free_uar(uar);
    return rc;
  }
};

}  // namespace twinpath::softhca
