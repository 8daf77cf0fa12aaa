#pragma once
// One rank's part of a communicator of two, by whatever one-sided table: windows, and lanes to the
// other rank, one a context.
//
// A call that gives an error is a lost connection; what must not be at all is thrown (must.h).
//
// Threads: one at a time.
#include <functional>
#include <memory>
#include <vector>

#include "test/abi/built_plugin.h"
#include "test/abi/gin_any.h"
#include "test/abi/one_sided_plan.h"
#include "test/abi/rma_team.h"

namespace twinpath::test {

struct SidedWindow {
  void* handle = nullptr;
  std::uint64_t device = 0;  // what kernels get
  explicit operator bool() const { return handle != nullptr; }
};
// Those of an act: what is put and read by others, and what is written by others and by reads.
struct SidedWindows {
  SidedWindow out, in;
};

struct SidedPut {
  std::uint64_t from = 0, to = 0, bytes = 0;  // in the own `out`, in the other rank's `in`
  std::uint64_t add = 0;                      // behind it; 0: no signal
};

class SidedLane {
 public:
  virtual ~SidedLane() = default;
  // False: it is lost.
  virtual bool put(const SidedWindows& w, const SidedPut& put) = 0;
  // From the other rank's `out` to the own `in`.
  virtual bool get(const SidedWindows& w, std::uint64_t from, std::uint64_t to,
                   std::uint64_t bytes) = 0;
  // Lets it go on; never waits.  False: it is lost.
  virtual bool step() = 0;
  // So many calls have been made, and so many of the first have ended: sources may be used again,
  // and what was read is there.
  virtual std::uint64_t begun() const = 0;
  virtual std::uint64_t ended() = 0;
  // Once it is lost: true when nothing is under way any more.  No call follows.
  virtual bool settle() = 0;
  // The sum of the signals that the other rank's lane has sent.  `word`: where it is, when that is
  // in the own `in`.
  virtual std::uint64_t received(const void* word) = 0;
};

class SidedComm {
 public:
  virtual ~SidedComm() = default;
  virtual SidedLane& lane(int context) = 0;
  // Collective.
  virtual SidedWindow reg(void* data, std::size_t bytes) = 0;
  virtual void dereg(const SidedWindow& window) = 0;
  virtual bool failed() = 0;
  // Whatever is under way.  Lanes end with their contexts.
  virtual void destroy_contexts() = 0;
  // And windows.
  virtual void close() = 0;
};

// The built plugin's tables.
class SidedPlugin : private BuiltPlugin {
 public:
  SidedPlugin()
      : rmas(all_rma_versions([this](const char* symbol) { return find(symbol); })),
        gins(all_gin_versions([this](const char* symbol) { return find(symbol); })) {}
  using BuiltPlugin::nets;
  std::vector<std::unique_ptr<AnyRma>> rmas;
  std::vector<std::unique_ptr<AnyGin>> gins;
};

struct SidedSetup {
  Sided table = Sided::rma14;
  LogSink log = nullptr;
  int rank = 0;
  int number = 0;  // of the communicator
  // By context; out is of the own rank, in of the other.
  std::vector<Lane> out, in;
};
// Collective.
std::unique_ptr<SidedComm> join(SidedPlugin& plugin, const SidedSetup& setup, AllGather& boot);

}  // namespace twinpath::test
