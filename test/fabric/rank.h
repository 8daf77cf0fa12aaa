#pragma once
// One end of two that exchange messages of awkward sizes: K receives, K sends, and then only
// tests.  It does one thing per call, so that a test can say who calls what, and when.
//
// What goes wrong is kept as text: a rank may run in a thread of its own.
#include <memory>
#include <string>
#include <vector>

#include "test/fabric/world.h"

namespace twinpath::test {

struct Exchange {
  std::size_t messages = 1;
  std::size_t group = 1;  // receives of one irecv
  bool reversed = false;  // sent last first, each under a tag of its own
  std::vector<std::size_t> sizes{8, 64, 0, 4096, 100'000};

  std::size_t bytes(std::size_t i) const { return sizes[i % sizes.size()]; }
  int tag(std::size_t i) const { return reversed ? static_cast<int>(i) : 7; }
};

class Sends {
 public:
  Sends(SendComm& comm, const Exchange& e) : comm_(comm), what_(e) {
    for (std::size_t i = 0; i < e.messages; ++i)
      buffers_.push_back(std::make_unique<Buffer>(comm, e.bytes(i), static_cast<unsigned>(i)));
  }
  // One isend of the next message; true when all have been accepted.
  bool try_next() {
    if (requests_.size() == what_.messages) return true;
    const std::size_t n = requests_.size();
    const std::size_t i = what_.reversed ? what_.messages - 1 - n : n;
    Request* request = nullptr;
    Buffer& b = *buffers_[i];
    const Status s = comm_.isend(b.data(), b.size(), what_.tag(i), b.memory, &request);
    if (s != Status::ok && s != Status::again) failure = std::string("isend: ") + status_name(s);
    if (request != nullptr) requests_.push_back(request);
    return requests_.size() == what_.messages;
  }
  // Tests what is not done; true when everything is.
  bool test_all() {
    bool all = requests_.size() == what_.messages;
    for (Request*& r : requests_) {
      if (r == nullptr) continue;
      Completion c;
      const Status s = r->test(c);
      if (s != Status::ok) failure = std::string("test of a send: ") + status_name(s);
      if (c.done || s != Status::ok) r = nullptr;
      all = all && r == nullptr;
    }
    return all;
  }
  std::size_t accepted() const { return requests_.size(); }
  std::string failure;

 private:
  SendComm& comm_;
  const Exchange what_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Request*> requests_;  // null: done
};

class Receives {
 public:
  Receives(RecvComm& comm, const Exchange& e, bool optional = false) : what_(e) {
    std::vector<RecvBuffer> group;
    for (std::size_t i = 0; i < e.messages; ++i) {
      buffers_.push_back(std::make_unique<Buffer>(comm, e.bytes(i)));
      buffers_.back()->clear();
      group.push_back(buffers_.back()->receive(e.tag(i)));
      if (group.size() < e.group && i + 1 < e.messages) continue;
      Request* request = nullptr;
      const Status s = comm.irecv(group, optional, &request);
      if (request == nullptr) failure = std::string("irecv: ") + status_name(s);
      requests_.push_back(request);
      group.clear();
    }
  }
  // The same of one receive; true when it is done.
  bool test(std::size_t i) {
    if (requests_[i] == nullptr) return true;
    Completion c;
    const Status s = requests_[i]->test(c);
    if (s != Status::ok) failure = std::string("test of a receive: ") + status_name(s);
    if (c.done || s != Status::ok) requests_[i] = nullptr;
    return requests_[i] == nullptr;
  }
  bool test_all() {
    bool all = true;
    for (std::size_t i = 0; i < requests_.size(); ++i) all = test(i) && all;
    return all;
  }
  bool test_last() { return test(requests_.size() - 1); }
  // Once all are done.
  bool hold_their_bytes() const {
    for (std::size_t i = 0; i < buffers_.size(); ++i)
      if (!buffers_[i]->holds(static_cast<unsigned>(i), what_.bytes(i))) return false;
    return true;
  }
  // The comm goes first.
  void forget() {
    for (auto& b : buffers_) b->forget();
  }
  std::string failure;

 private:
  const Exchange what_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Request*> requests_;  // null: done
};

// Calls nothing but what it must: all receives, all sends, then tests.  The two comms of `link` may
// be those of one rank, with another that does the same, or the two ends of one connection.  Empty,
// or what went wrong.
inline std::string exchange(Link& link, const Exchange& e, std::int64_t limit_ms) {
  Receives receives(*link.recv, e);
  Sends sends(*link.send, e);
  const bool accepted = eventually(
      [&] { return sends.try_next() || !sends.failure.empty() || !receives.failure.empty(); },
      limit_ms);
  if (!accepted) return "only " + std::to_string(sends.accepted()) + " sends were accepted";
  const bool done = eventually(
      [&] {
        const bool sent = sends.test_all();
        return (receives.test_all() && sent) || !receives.failure.empty();
      },
      limit_ms);
  if (!sends.failure.empty() || !receives.failure.empty()) return sends.failure + receives.failure;
  if (!done) return "the tests never ended";
  return receives.hold_their_bytes() ? "" : "wrong bytes";
}

}  // namespace twinpath::test
