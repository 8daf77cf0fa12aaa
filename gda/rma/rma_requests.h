#pragma once
// Requests of one context.  They live as long as it does, so one that nobody asked about any more
// dangles nowhere.
//
// Threads: under the context's lock.
#include <deque>

#include "gda/rma/rma.h"

namespace twinpath::gda::rma {

class Context;

struct Request final : RmaRequest {
  Status test(bool& done) override;

  Context* context = nullptr;
  Status state = Status::again;  // again: under way; ok: done; else what went wrong
  Request* next_free = nullptr;
};

class Requests {
 public:
  Request* take(Context& context) {
    Request* request = free_;
    if (request != nullptr) {
      free_ = request->next_free;
      request->state = Status::again;
      return request;
    }
    request = &all_.emplace_back();
    request->context = &context;
    return request;
  }
  void give_back(Request* request) {
    request->next_free = free_;
    free_ = request;
  }

 private:
  std::deque<Request> all_;  // keeps addresses
  Request* free_ = nullptr;
};

}  // namespace twinpath::gda::rma
