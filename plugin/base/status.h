#pragma once
// Errors as values.  Status says what went wrong in our own words; it becomes an
// ncclResult_t in exactly one function (plugin/nccl/boundary.h).  The place that
// first knows the cause logs it once, with the object's name; its callers only pass
// the Status on.
#include <utility>
#include <variant>

namespace twinpath {

enum class [[nodiscard]] Status{
    ok,
    again,         // would block: call again; never an error
    bad_argument,  // the caller broke the contract (null, out of range, truncated handle)
    no_memory,     // allocation, memlock or queue space
    system,        // a local system or verbs call failed
    remote,        // the peer or the wire failed
    closed,        // the peer went away
    unsupported,   // asked for something this device or build does not offer
    internal,      // our own invariant is broken
};

constexpr const char* status_name(Status s) {
  switch (s) {
    case Status::ok:
      return "ok";
    case Status::again:
      return "again";
    case Status::bad_argument:
      return "bad argument";
    case Status::no_memory:
      return "out of memory";
    case Status::system:
      return "system error";
    case Status::remote:
      return "remote error";
    case Status::closed:
      return "peer closed";
    case Status::unsupported:
      return "unsupported";
    case Status::internal:
      return "internal error";
  }
  return "unknown";
}

// A value or the Status that says why there is none (never Status::ok).
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}
  Result(Status error) : v_(std::in_place_index<1>, error) {}
  explicit operator bool() const { return v_.index() == 0; }
  Status status() const { return *this ? Status::ok : std::get<1>(v_); }
  T& operator*() { return std::get<0>(v_); }
  const T& operator*() const { return std::get<0>(v_); }
  T* operator->() { return &std::get<0>(v_); }
  T take() && { return std::move(std::get<0>(v_)); }

 private:
  std::variant<T, Status> v_;
};

}  // namespace twinpath

// Returns from the enclosing function when `expr` is not Status::ok.
#define TP_TRY(expr)                                                                  \
  do {                                                                                \
    if (::twinpath::Status tp_status_ = (expr); tp_status_ != ::twinpath::Status::ok) \
      return tp_status_;                                                              \
  } while (0)
