#pragma once
// A communicator whose first device is connected with its last, both ends in one thread, through
// the table of any version: what NCCL's proxy does with a plugin, call by call.
//
// Failures are thrown (must.h): the helpers also run on threads.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "plugin/transport.h"
#include "test/abi/any_net.h"
#include "test/abi/must.h"

namespace twinpath::test {

inline constexpr auto kPatience = std::chrono::seconds(20);

// Calls `step` until it says true.
template <class Step>
void poll_until(const char* what, Step step) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!step()) {
    if (std::chrono::steady_clock::now() > deadline)
      throw Failure(std::string("no end of ") + what);
  }
}

// A started operation and what became of it.
struct Op {
  void* request = nullptr;
  bool done = false;
  std::array<int, kMaxRecvs> sizes{-1, -1, -1, -1, -1, -1, -1, -1};
};

// A communicator's connection to itself: listener, send and receive end in one thread.
class Loop {
 public:
  // `device`: of both ends, in place of the first and the last.
  Loop(AnyNet& net, void* ctx, int device = -1) : net_(net) {
    int devices = 0;
    must(net.devices(&devices), "devices");
    must(devices > 0, "a device: the environment gives none");
    Handle handle{};
    void* listener = nullptr;
    must(net.listen(ctx, device < 0 ? devices - 1 : device, handle.data(), &listener), "listen");
    poll_until("connect and accept", [&] {
      if (send == nullptr)
        must(net.connect(ctx, std::max(device, 0), handle.data(), &send, -1), "connect");
      if (recv == nullptr) must(net.accept(listener, &recv), "accept");
      return send != nullptr && recv != nullptr;
    });
    must(net.close_listen(listener), "closeListen");  // NCCL does so at once
  }
  ~Loop() {
    (void)net_.close_send(send);
    (void)net_.close_recv(recv);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // `receive` makes progress meanwhile: a receiver may announce its buffers as late as in test.
  Op isend(void* data, std::size_t bytes, int tag, void* memory, Op* receive) {
    Op op;
    poll_until("isend", [&] {
      if (receive != nullptr) progress(*receive);
      must(net_.isend(send, data, bytes, tag, memory, &op.request), "isend");
      return op.request != nullptr;
    });
    return op;
  }
  Op irecv(std::vector<void*> data, std::vector<std::size_t> bytes, std::vector<int> tags,
           std::vector<void*> memory, bool optional = false) {
    Op op;
    void* const unwanted = reinterpret_cast<void*>(abi::kOptionalRecvCompletion);
    poll_until("irecv", [&] {
      op.request = optional ? unwanted : nullptr;
      must(net_.irecv(recv, static_cast<int>(data.size()), data.data(), bytes.data(), tags.data(),
                      memory.data(), &op.request),
           "irecv");
      must(op.request != unwanted, "0x1 was overwritten");
      return op.request != nullptr;
    });
    return op;
  }
  void progress(Op& op) {
    if (op.done) return;  // the request is dead
    int now = 77;
    must(net_.test(op.request, &now, op.sizes.data()), "test");
    must(now == 0 || now == 1, "done was written");
    op.done = now == 1;
  }
  void finish(std::initializer_list<Op*> ops) {
    poll_until("requests", [&] {
      bool all = true;
      for (Op* op : ops) {
        progress(*op);
        all = all && op->done;
      }
      return all;
    });
  }

  void* send = nullptr;
  void* recv = nullptr;

 private:
  AnyNet& net_;
};

// A communicator from init to finalize.
class Communicator {
 public:
  Communicator(AnyNet& net, LogSink log, int traffic_class = -1) : net_(net) {
    must(net.init(&ctx, log, traffic_class), "init");
    must(net.has_context() == (ctx != nullptr), "a context where there is one");
  }
  ~Communicator() { (void)net_.finalize(ctx); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  void* ctx = nullptr;

 private:
  AnyNet& net_;
};

inline std::vector<std::uint8_t> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::uint8_t> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<std::uint8_t>((i * 31 + seed * 7 + (i >> 8)) & 0xff);
  }
  return out;
}

// One registered buffer on each side.
struct Buffers {
  Buffers(AnyNet& n, Loop& l, std::size_t bytes, unsigned seed)
      : net(n), loop(l), out(pattern(bytes, seed)), in(bytes) {
    must(net.reg(loop.send, out.data(), bytes, abi::kPtrHost, &out_mr), "regMr");
    must(net.reg(loop.recv, in.data(), bytes, abi::kPtrHost, &in_mr), "regMr");
  }
  ~Buffers() {
    (void)net.dereg(loop.send, out_mr);
    (void)net.dereg(loop.recv, in_mr);
  }
  AnyNet& net;
  Loop& loop;
  std::vector<std::uint8_t> out, in;
  void* out_mr = nullptr;
  void* in_mr = nullptr;
};

inline void send_one(AnyNet& net, Loop& loop, std::size_t bytes, unsigned seed) {
  Buffers b(net, loop, std::max<std::size_t>(bytes, 1), seed);
  std::fill(b.in.begin(), b.in.end(), std::uint8_t{0});
  Op receive = loop.irecv({b.in.data()}, {bytes}, {5}, {b.in_mr});
  Op send = loop.isend(b.out.data(), bytes, 5, b.out_mr, &receive);
  loop.finish({&send, &receive});
  must(send.sizes[0] == static_cast<int>(bytes), "sent size");
  must(receive.sizes[0] == static_cast<int>(bytes), "received size");
  must(bytes == 0 || b.in == b.out, "received data");
}

// Three receives in one request, sent in another order; the sent sizes come in posting order.
inline void send_group(AnyNet& net, Loop& loop) {
  constexpr std::size_t kEach = 4096;
  Buffers b(net, loop, 3 * kEach, 9);
  std::uint8_t* in = b.in.data();
  Op receive = loop.irecv({in, in + kEach, in + 2 * kEach}, {kEach, kEach, kEach}, {7, 8, 9},
                          {b.in_mr, b.in_mr, b.in_mr});
  std::uint8_t* out = b.out.data();
  Op second = loop.isend(out + kEach, 100, 8, b.out_mr, &receive);
  Op third = loop.isend(out + 2 * kEach, 0, 9, b.out_mr, &receive);
  Op first = loop.isend(out, kEach, 7, b.out_mr, &receive);
  loop.finish({&first, &second, &third, &receive});
  must(receive.sizes == decltype(receive.sizes){4096, 100, 0, -1, -1, -1, -1, -1},
       "sizes of the group, in posting order and no further");
  must(std::equal(out, out + kEach, in), "first of the group");
  must(std::equal(out + kEach, out + kEach + 100, in + kEach), "second of the group");
}

inline void send_optional(AnyNet& net, Loop& loop) {
  Buffers b(net, loop, 512, 3);
  std::fill(b.in.begin(), b.in.end(), std::uint8_t{0xEE});
  Op receive = loop.irecv({b.in.data()}, {512}, {1}, {b.in_mr}, true);
  Op send = loop.isend(b.out.data(), 512, 1, b.out_mr, &receive);
  loop.finish({&send, &receive});
  // The completion says nothing about the data, which comes by itself.
  volatile std::uint8_t* last = b.in.data();
  poll_until("the data", [&] {
    for (std::size_t i = 0; i < 512; ++i) {
      if (last[i] != b.out[i]) return false;
    }
    return true;
  });
}

inline void flush(AnyNet& net, Loop& loop) {
  Buffers b(net, loop, 256, 1);
  void* data = b.in.data();
  int size = 256;
  void* request = reinterpret_cast<void*>(std::uintptr_t{0xA5A5A5A0});
  must(net.iflush(loop.recv, 1, &data, &size, &b.in_mr, &request), "iflush");
  // NCCL passes no place for sizes here.
  for (int done = request == nullptr ? 1 : 0; done == 0;) {
    must(net.test(request, &done, nullptr), "test of a flush");
  }
}

}  // namespace twinpath::test
