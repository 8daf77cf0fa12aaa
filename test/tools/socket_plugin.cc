// A small net plugin over local sockets, with faults on demand: what net_perf is tested against
// where the real plugin would be too good.  SOCKET_PLUGIN_FAULT is one of
//   corrupt   one byte of each 20th message is wrong     short   sizes reported 8 bytes too small
//   hang      nothing arrives after 50 messages          die     the process is killed then
//   error     test() fails then                          block   test() never returns then
// Exports net v8, v10 and v12, built from tools/common/net_abi.h.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "tools/common/net_abi.h"

namespace {

namespace abi = twinpath::tools::abi;

struct Header {
  std::uint64_t bytes = 0;
  int tag = 0;
};
struct Part {
  std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
  int tag = 0;
  std::size_t got = 0;
  bool taken = false, complete = false;
};
struct Request {
  struct Comm* comm = nullptr;
  std::vector<Part> parts;
  bool used = false;
};
struct Comm {
  int fd = -1;
  bool sender = false;
  Request requests[32];
  std::deque<Request*> queue;
  Header header;
  std::size_t header_done = 0, body_done = 0;
  Part* current = nullptr;
  std::uint64_t moved = 0;
};

std::string fault() {
  const char* f = std::getenv("SOCKET_PLUGIN_FAULT");
  return f == nullptr ? "" : f;
}

Request* take(Comm* c, bool sender) {
  for (Request& r : c->requests)
    if (!r.used) {
      r = {};
      r.used = true;
      r.comm = c;
      c->sender = sender;
      c->queue.push_back(&r);
      return &r;
    }
  return nullptr;
}

bool would_block(ssize_t n) { return n < 0 && (errno == EAGAIN || errno == EINTR); }

// Writes or reads a part of [p, p + size); true when `done` reached size.
bool transfer(Comm* c, void* p, std::size_t size, std::size_t& done, bool& broken) {
  auto* bytes = static_cast<std::uint8_t*>(p);
  while (done < size) {
    const ssize_t n = c->sender ? send(c->fd, bytes + done, size - done, MSG_NOSIGNAL)
                                : recv(c->fd, bytes + done, size - done, 0);
    if (would_block(n)) return false;
    if (n <= 0) {
      broken = true;
      return false;
    }
    done += static_cast<std::size_t>(n);
  }
  return true;
}

Part* next_to_send(Comm* c) {
  for (Request* r : c->queue)
    if (!r->parts[0].complete) return &r->parts[0];
  return nullptr;
}
Part* match(Comm* c, int tag) {
  for (Request* r : c->queue)
    for (Part& p : r->parts)
      if (!p.taken && p.tag == tag) return &p;
  return nullptr;
}

bool progress(Comm* c) {
  bool broken = false;
  while (true) {
    if (c->sender) {
      Part* p = next_to_send(c);
      if (p == nullptr) return true;
      c->header = {p->bytes, p->tag};
      if (!transfer(c, &c->header, sizeof c->header, c->header_done, broken)) return !broken;
      c->current = p;
    } else {
      if (c->current == nullptr) {
        if (c->queue.empty()) return true;
        if (!transfer(c, &c->header, sizeof c->header, c->header_done, broken)) return !broken;
        c->current = match(c, c->header.tag);
        if (c->current == nullptr) return true;
        c->current->taken = true;
      }
    }
    Part* p = c->current;
    if (!transfer(c, p->data, c->header.bytes, c->body_done, broken)) return !broken;
    p->got = c->header.bytes;
    p->complete = true;
    c->header_done = c->body_done = 0;
    c->current = nullptr;
    ++c->moved;
    if (!c->sender && fault() == "corrupt" && c->moved % 20 == 0 && p->got != 0)
      p->data[p->got / 2] = static_cast<std::uint8_t>(p->data[p->got / 2] + 1);
  }
}

abi::Result devices(int* n) {
  *n = fault() == "none" ? 0 : 1;
  return 0;
}

template <int V>
abi::Result properties(int, abi::Props<V>* out) {
  static char name[] = "sock0";
  *out = {};
  out->name = name;
  out->ptr_support = abi::kPtrHost;
  const abi::PropsMiddle middle{10000, 1, 0, 1024, 8, 0, 0};
  if constexpr (V == 8) {
    static_cast<abi::PropsMiddle&>(*out) = middle;
  } else {
    out->middle = middle;
    out->members.count = 1;
    out->max_p2p_bytes = out->max_coll_bytes = std::size_t{1} << 30;
  }
  return 0;
}

abi::Result open_listener(void* handle, void** comm) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_un any{};
  any.sun_family = AF_UNIX;  // autobind: the kernel picks an abstract name
  if (bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any.sun_family) != 0) return 2;
  sockaddr_un name{};
  socklen_t length = sizeof name;
  if (listen(fd, 64) != 0 || getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0)
    return 2;
  std::memcpy(handle, &length, sizeof length);
  std::memcpy(static_cast<char*>(handle) + sizeof length, &name, length);
  auto* c = new Comm;
  c->fd = fd;
  *comm = c;
  return 0;
}
abi::Result open_sender(void* handle, void** comm) {
  *comm = nullptr;
  sockaddr_un name{};
  socklen_t length = 0;
  std::memcpy(&length, handle, sizeof length);
  std::memcpy(&name, static_cast<char*>(handle) + sizeof length, length);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&name), length) != 0) {
    close(fd);
    return errno == EAGAIN ? 0 : 6;
  }
  auto* c = new Comm;
  c->fd = fd;
  *comm = c;
  return 0;
}
abi::Result accept_one(void* listener, void** comm, void**) {
  *comm = nullptr;
  const int fd =
      accept4(static_cast<Comm*>(listener)->fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return 0;
  auto* c = new Comm;
  c->fd = fd;
  *comm = c;
  return 0;
}
abi::Result reg_mr(void*, void* data, std::size_t, int, void** memory) {
  *memory = data;
  return 0;
}
abi::Result dereg_mr(void*, void*) { return 0; }

abi::Result post_send(void* comm, void* data, std::size_t bytes, int tag, void** request) {
  auto* c = static_cast<Comm*>(comm);
  Request* r = take(c, true);
  if (r != nullptr) r->parts = {Part{static_cast<std::uint8_t*>(data), bytes, tag}};
  *request = r;
  return 0;
}
template <class Size>
abi::Result post_recv(void* comm, int n, void** data, Size* bytes, int* tags, void** request) {
  Request* r = take(static_cast<Comm*>(comm), false);
  *request = r;
  if (r == nullptr) return 0;
  for (int i = 0; i < n; ++i)
    r->parts.push_back(
        {static_cast<std::uint8_t*>(data[i]), static_cast<std::size_t>(bytes[i]), tags[i]});
  return 0;
}

abi::Result test_request(void* request, int* done, int* sizes) {
  auto* r = static_cast<Request*>(request);
  Comm* c = r->comm;
  *done = 0;
  if (!c->sender && c->moved >= 50) {
    const std::string f = fault();
    if (f == "hang") return 0;
    if (f == "error") return 6;
    if (f == "die") raise(SIGKILL);
    while (f == "block") pause();
  }
  if (!progress(c)) return 6;
  for (std::size_t i = 0; i < r->parts.size(); ++i)
    if (!r->parts[i].complete) return 0;
  for (std::size_t i = 0; i < r->parts.size(); ++i) {
    const auto got = static_cast<int>(r->parts[i].got);
    if (sizes != nullptr) sizes[i] = fault() == "short" && !c->sender && got > 8 ? got - 8 : got;
  }
  std::erase(c->queue, r);
  r->used = false;
  *done = 1;
  return 0;
}
abi::Result close_comm(void* comm) {
  auto* c = static_cast<Comm*>(comm);
  close(c->fd);
  delete c;
  return 0;
}

template <int V>
abi::Net<V> make() {
  abi::Net<V> t{};
  t.name = "Sockets";
  if constexpr (V >= 11) {
    t.init = [](void**, std::uint64_t, abi::CommConfig*, abi::Logger, abi::Profiler) {
      return fault() == "init" ? 2 : 0;
    };
    t.finalize = [](void*) { return 0; };
    t.listen = [](void*, int, void* h, void** c) { return open_listener(h, c); };
    t.connect = [](void*, int, void* h, void** c, void**) { return open_sender(h, c); };
  } else {
    if constexpr (V == 10) {
      t.init = [](abi::Logger, abi::Profiler) { return 0; };
      t.connect = [](int, abi::CommConfig*, void* h, void** c, void**) {
        return open_sender(h, c);
      };
    } else {
      t.init = [](abi::Logger) { return 0; };
      t.connect = [](int, void* h, void** c, void**) { return open_sender(h, c); };
    }
    t.listen = [](int, void* h, void** c) { return open_listener(h, c); };
  }
  t.devices = devices;
  t.properties = properties<V>;
  t.accept = accept_one;
  t.reg_mr = reg_mr;
  t.dereg_mr = dereg_mr;
  using Size = typename abi::Net<V>::Size;
  if constexpr (V >= 10) {
    t.isend = [](void* c, void* p, Size n, int tag, void*, void*, void** r) {
      return post_send(c, p, n, tag, r);
    };
    t.irecv = [](void* c, int n, void** p, Size* s, int* tags, void**, void**, void** r) {
      return post_recv(c, n, p, s, tags, r);
    };
  } else {
    t.isend = [](void* c, void* p, Size n, int tag, void*, void** r) {
      return post_send(c, p, static_cast<std::size_t>(n), tag, r);
    };
    t.irecv = [](void* c, int n, void** p, Size* s, int* tags, void**, void** r) {
      return post_recv(c, n, p, s, tags, r);
    };
  }
  t.iflush = [](void*, int, void**, int*, void**, void** r) {
    *r = nullptr;
    return 0;
  };
  t.test = test_request;
  t.close_send = t.close_recv = t.close_listen = close_comm;
  return t;
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) abi::Net<8> ncclNetPlugin_v8 = make<8>();
__attribute__((visibility("default"))) abi::Net<10> ncclNetPlugin_v10 = make<10>();
__attribute__((visibility("default"))) abi::Net<12> ncclNetPlugin_v12 = make<12>();
}
