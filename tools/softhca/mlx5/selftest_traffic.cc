// Work given to queues that were made by commands, for softhca-mlx5-selftest.
#include "tools/softhca/mlx5/selftest_traffic.h"

#include <memory>
#include <string_view>

#include "tools/softhca/mlx5/selftest_queues.h"

namespace twinpath::softhca {
namespace {

constexpr unsigned kRequester = 0, kSendImmediate = 3, kRequesterError = 13;
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                        IBV_ACCESS_REMOTE_ATOMIC;

// Two queue pairs joined to each other, with one page and one memory; and a third, with a page of
// its own, which tells that the model has looked everywhere.
struct Both {
  Library& lib;
  ibv_context* context;
  ibv_pd* pd = nullptr;
  ibv_mr* mr = nullptr;
  std::unique_ptr<DevxQueue> a, b, c;
  alignas(65536) std::uint8_t data[8192] = {};  // where a page begins, of whatever size it is

  std::string make() {
    ibv_port_attr port{};
    ibv_gid gid{};
    TRY(ibv_query_port(context, 1, &port) == 0 && ibv_query_gid(context, 1, 1, &gid) == 0);
    const bool ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    pd = ibv_alloc_pd(context);
    mr = ibv_reg_mr_iova2(pd, data, sizeof data, 0, kAccess);  // addresses are places in it
    mlx5dv_pd view{};
    mlx5dv_obj obj{};
    obj.pd = {pd, &view};
    TRY(mr != nullptr && lib.init_obj(&obj, MLX5DV_OBJ_PD) == 0);
    a = std::make_unique<DevxQueue>(lib, context, ethernet);
    b = std::make_unique<DevxQueue>(lib, context, ethernet);
    c = std::make_unique<DevxQueue>(lib, context, ethernet);
    // On another page: a bell has the model look at all queues of its page.
    mlx5dv_devx_uar* const apart = lib.devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
    TRY(c->make(view.pdn, apart) && c->join(*c, gid.raw, port.lid));
    TRY(a->make(view.pdn) && b->make(view.pdn, a->uar));
    TRY(a->join(*b, gid.raw, port.lid) && b->join(*a, gid.raw, port.lid));
    return "";
  }

  static Bytes remote(std::uint32_t place, std::uint32_t key) {
    Bytes e(64);
    return e.put(8, 7, 0, 0x08).put(20, 31, 0, place).put(24, 31, 0, key);
  }
  void write(std::uint32_t from, std::uint32_t to, std::uint32_t bytes, std::uint32_t key) {
    Bytes e = remote(to, key);
    a->post(DevxQueue::piece(e, 32, from, bytes, mr->lkey), 0x08, 3);
  }
  // After the second, everything that was stored before the first has been seen.
  bool settle() {
    for (int i = 0; i < 2; ++i) {
      Bytes nop(64);
      c->post(nop.put(8, 7, 0, 8), 0x00, 1);
      c->ring();
      if (c->wait() != kRequester) return false;
    }
    return true;
  }
  std::uint64_t& word(std::size_t place) { return *reinterpret_cast<std::uint64_t*>(data + place); }

  std::string end() {
    TRY(b->end(false) == 0 && a->end() == 0 && c->end() == 0);
    TRY(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
    return "";
  }
};

std::string every_operation(Both& t) {
  std::memcpy(t.data, "written by command", 18);
  t.write(0, 4096, 18, t.mr->rkey);
  Bytes inlined = t.remote(5000, t.mr->rkey).put(32, 31, 0, 0x80000000 | 13);
  constexpr std::string_view kInline = "inline, of it";
  for (std::size_t i = 0; i < kInline.size(); ++i)
    inlined.data()[36 + i] = static_cast<std::uint8_t>(kInline[i]);
  t.a->post(inlined, 0x08, 4);
  Bytes nop(64);
  t.a->post(nop.put(8, 7, 0, 8), 0x00, 1);
  Bytes read = t.remote(4096, t.mr->rkey);
  t.a->post(DevxQueue::piece(read, 32, 1024, 18, t.mr->lkey), 0x10, 3);
  t.word(6400) = 40;
  Bytes add = t.remote(6400, t.mr->rkey).put(36, 31, 0, 2);
  t.a->post(DevxQueue::piece(add, 48, 2048, 8, t.mr->lkey), 0x12, 4);
  Bytes swap = t.remote(6400, t.mr->rkey).put(36, 31, 0, 7).put(44, 31, 0, 42);
  t.a->post(DevxQueue::piece(swap, 48, 2056, 8, t.mr->lkey), 0x11, 4);
  t.a->ring();
  for (std::uint32_t i = 0; i < 6; ++i) TRY(t.a->wait() == kRequester && t.a->last_index() == i);
  TRY(std::memcmp(t.data + 4096, "written by command", 18) == 0);
  TRY(std::memcmp(t.data + 5000, "inline, of it", 13) == 0);
  TRY(std::memcmp(t.data + 1024, "written by command", 18) == 0);
  TRY(t.word(2048) == 40 && t.word(2056) == 42 && t.word(6400) == 7);
  return "";
}

// The extended atomics, of 4 bytes and of 8: what they touch, and what comes back.
std::string masked_atomics(Both& t) {
  constexpr std::uint32_t kFour = 8, kEight = 9;  // the modifiers
  constexpr std::uint32_t kSwap = 0x14, kAdd = 0x15;
  const auto half = [&](std::size_t place) {
    std::uint32_t value = 0;
    std::memcpy(&value, t.data + place, sizeof value);
    return value;
  };
  const auto wide = [](Bytes& e, std::size_t at, std::uint64_t value) {
    e.put(at, 31, 0, static_cast<std::uint32_t>(value >> 32))
        .put(at + 4, 31, 0, static_cast<std::uint32_t>(value));
  };
  const auto go = [&](Bytes& e, std::uint32_t modifier, std::uint32_t opcode, std::size_t pieces_at,
                      std::uint32_t bytes) {
    t.word(2048) = ~std::uint64_t{0};
    e.put(0, 31, 24, modifier);
    t.a->post(DevxQueue::piece(e, pieces_at, 2048, bytes, t.mr->lkey), opcode,
              static_cast<unsigned>(pieces_at / 16 + 1));
    t.a->ring();
    return t.a->wait();
  };
  // 8 bytes: the upper half is replaced if the lowest byte is as expected.
  t.word(6400) = 0x1111222233334444;
  for (const std::uint64_t expected : {std::uint64_t{0x45}, std::uint64_t{0x44}}) {
    Bytes e(128);
    Bytes to = t.remote(6400, t.mr->rkey);
    std::memcpy(e.data(), to.data(), 64);
    wide(e, 32, 0xaaaabbbbccccdddd), wide(e, 40, expected);
    wide(e, 48, 0xffffffff00000000), wide(e, 56, 0xff);
    TRY(go(e, kEight, kSwap, 64, 8) == kRequester && t.word(2048) == 0x1111222233334444);
  }
  TRY(t.word(6400) == 0xaaaabbbb33334444);
  // 8 bytes: two fields, and nothing is carried from one to the other.
  t.word(6400) = 0x00000001ffffffff;
  Bytes add = t.remote(6400, t.mr->rkey);
  wide(add, 32, 0x0000000200000001), wide(add, 40, 0x80000000);
  TRY(go(add, kEight, kAdd, 48, 8) == kRequester && t.word(2048) == 0x00000001ffffffff);
  TRY(t.word(6400) == 0x0000000300000000);
  // 4 bytes: either half alone, and 4 bytes come back.
  for (const std::uint32_t at : {6400u, 6404u}) {
    t.word(6400) = 0xffffffffffffffff;
    Bytes more = t.remote(at, t.mr->rkey).put(32, 31, 0, 3);
    TRY(go(more, kFour, kAdd, 48, 4) == kRequester);
    TRY(half(2048) == 0xffffffff && half(2052) == 0xffffffff);
    TRY(half(at) == 2 && half(at == 6400 ? 6404 : 6400) == 0xffffffff);
    t.word(6400) = 0x0102030405060708;
    const std::uint32_t old = half(at);
    Bytes swap = t.remote(at, t.mr->rkey).put(32, 31, 0, 0xeeeeeeee).put(36, 31, 0, old);
    swap.put(40, 31, 0, 0x0000ffff).put(44, 31, 0, 0xffffffff);
    TRY(go(swap, kFour, kSwap, 48, 4) == kRequester);
    TRY(half(2048) == old && half(2052) == 0xffffffff);
    TRY(half(at) == ((old & 0xffff0000) | 0xeeee));
    TRY(half(at == 6400 ? 6404 : 6400) == (at == 6400 ? 0x01020304u : 0x05060708u));
  }
  return "";
}

// Receives, an immediate, and entries of two blocks, many times around both queues.
std::string many_sends(Both& t) {
  for (std::uint32_t i = 0; i < 300; ++i) {
    t.b->receive(4096, 512, t.mr->lkey);
    std::memset(t.data, static_cast<int>(i), 64);
    Bytes send(128);  // a list of five pieces
    send.put(8, 7, 0, 0x08).put(12, 31, 0, i);
    for (std::uint32_t k = 0; k < 5; ++k)
      DevxQueue::piece(send, 16 + 16 * k, 10 * k, 10, t.mr->lkey);
    const std::uint32_t index = t.a->produced;
    t.a->post(send, 0x0b, 6);
    t.a->ring();
    TRY(t.a->wait() == kRequester && t.a->last_index() == (index & 0xffff));
    TRY(t.b->wait() == kSendImmediate);
    TRY(t.b->last[39] == (i & 0xff) && t.b->last[47] == 50);
    TRY(t.data[4096] == static_cast<std::uint8_t>(i) && t.data[4096 + 49] == t.data[4096]);
  }
  return "";
}

// Two queue pairs share one doorbell: the word of one is overwritten by the other's at once.
std::string shared_doorbell(Both& t) {
  for (int i = 0; i < 200; ++i) {
    for (DevxQueue* q : {t.a.get(), t.b.get()}) {
      Bytes nop(64);
      q->post(nop.put(8, 7, 0, 8), 0x00, 1);
    }
    t.a->ring();
    t.b->ring();
    TRY(t.a->wait() == kRequester && t.b->wait() == kRequester);
  }
  return "";
}

// An entry behind which nobody rang is not looked at; and a completion only where it is asked for.
std::string silence(Both& t) {
  Bytes nop(64);
  t.a->post(nop, 0x00, 1);  // wants no completion
  Bytes loud(64);
  t.a->post(loud.put(8, 7, 0, 8), 0x00, 1);
  t.a->ring();
  TRY(t.a->wait() == kRequester && t.a->last_index() == ((t.a->produced - 1) & 0xffff));
  TRY(t.settle());  // a ring stores its word twice, and the second may not have been taken yet
  t.a->post(loud, 0x00, 1);
  t.a->ring(false);  // the record alone
  t.b->post(loud, 0x00, 1);
  TRY(t.settle() && t.a->quiet());
  t.b->ring();  // whose page it is, too
  TRY(t.b->wait() == kRequester && t.a->wait() == kRequester);
  return "";
}

// b waits for an entry of a before it writes.
std::string waiting(Both& t) {
  t.word(6464) = 0;
  Bytes wait(64);
  // Its index counts completions of a's queue; every one of a's entries has one from here on.
  wait.put(24, 31, 0, t.a->consumed).put(28, 31, 0, t.a->cqn).put(8, 7, 0, 8);
  t.b->post(wait, 0x0f, 2);
  Bytes add = t.remote(6464, t.mr->rkey).put(36, 31, 0, 1);
  t.b->post(DevxQueue::piece(add, 48, 2048, 8, t.mr->lkey), 0x12, 4);
  t.b->ring();
  TRY(t.settle() && t.word(6464) == 0 && t.b->quiet());
  Bytes nop(64);
  t.a->post(nop.put(8, 7, 0, 8), 0x00, 1);
  t.a->ring();
  TRY(t.a->wait() == kRequester);
  TRY(t.b->wait() == kRequester && t.b->wait() == kRequester && t.word(6464) == 1);
  return "";
}

// A full queue of completions holds the next ones back; nothing is lost.
std::string full(Both& t) {
  const std::uint32_t sent = 2 * DevxQueue::kBlocks;
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < DevxQueue::kBlocks; ++i) {
      Bytes nop(64);
      t.a->post(nop.put(8, 7, 0, 8), 0x00, 1);
    }
    t.a->ring();
    TRY(t.settle());  // nobody has told yet that the first 16 were read
  }
  const std::uint32_t first = t.a->produced - sent;
  for (std::uint32_t i = 0; i < sent; ++i)
    TRY(t.a->wait() == kRequester && t.a->last_index() == ((first + i) & 0xffff));
  return "";
}

// The first error ends the queue pair; what is behind it is flushed, and reset begins anew.
std::string errors(Both& t) {
  t.write(0, 4096, 8, t.mr->rkey + 0x1000);
  t.write(0, 4096, 8, t.mr->rkey);
  t.a->ring();
  TRY(t.a->wait() == kRequesterError && t.a->last[55] == 0x13);  // remote access
  TRY(t.a->wait() == kRequesterError && t.a->last[55] == 0x05);  // flushed
  TRY(t.lib.state_of(t.a->qp, t.a->qpn) == 6);
  t.write(0, 4096, 8, t.mr->rkey);
  t.a->ring();
  TRY(t.a->wait() == kRequesterError && t.a->last[55] == 0x05);
  TRY(t.lib.change(t.a->qp, modify_qp(0x50a, t.a->qpn)) == 0);
  TRY(t.lib.state_of(t.a->qp, t.a->qpn) == 0);
  return "";
}

}  // namespace

std::string traffic(Library& lib, ibv_context* context) {
  Both t{lib, context};
  if (std::string wrong = t.make(); !wrong.empty()) return wrong;
  for (const auto& part : {every_operation, masked_atomics, many_sends, shared_doorbell, silence,
                           waiting, full, errors}) {
    if (std::string wrong = part(t); !wrong.empty()) return wrong;
  }
  return t.end();
}

}  // namespace twinpath::softhca
