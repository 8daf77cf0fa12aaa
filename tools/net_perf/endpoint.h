#pragma once
// One worker's side of a pair: the plugin, connections in both directions, registered buffers.
//
// Threads: one worker.  Ownership: everything is closed by destructors, registrations before
// connections, connections before the plugin.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tools/common/channel.h"
#include "tools/common/cuda_driver.h"
#include "tools/common/net_plugin.h"
#include "tools/net_perf/options.h"

namespace twinpath::tools {

// Messages up to the parent.
class Reporter {
 public:
  explicit Reporter(Channel channel) : channel_(std::move(channel)) {}
  void phase(const std::string& name);
  void fraction(double f) { channel_.send_line({{"fraction", f}}); }
  void result(nlohmann::json j) { channel_.send_line({{"result", std::move(j)}}); }
  void error(const std::string& text) { channel_.send_line({{"error", text}}); }
  void done() { channel_.send_line({{"done", true}}); }
  void barrier(std::int64_t deadline_ns);  // of all workers
  const std::string& current() const { return phase_; }

 private:
  Channel channel_;
  std::string phase_ = "starting";
};

// Ends the name of a phase in which net_perf itself works, not the plugin.
inline constexpr std::string_view kOwnWork = " (net_perf's own work)";

// Host or GPU memory of one worker.
class Buffer {
 public:
  Buffer(std::size_t bytes, std::shared_ptr<CudaDriver> gpu, bool vmm);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::uint8_t* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  bool on_gpu() const { return gpu_ != nullptr; }
  void write_pattern(std::size_t offset, std::size_t bytes, std::uint64_t seed);
  // Offset of the first wrong byte at or behind `from`, or -1.
  std::ptrdiff_t check_pattern(std::size_t offset, std::size_t bytes, std::uint64_t seed,
                               std::size_t from = 0);

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_;
  std::shared_ptr<CudaDriver> gpu_;
  std::vector<std::uint8_t> staging_;
};

class Endpoint {
 public:
  Endpoint(const Options& options, int rank, Reporter& reporter, Channel& peer);
  ~Endpoint();

  // Memory for messages, in a phase of its own: much of it takes seconds.
  Buffer buffer(std::size_t bytes);
  // Opens `sends` connections to the peer and takes `receives` from it; the peer calls it with
  // the numbers exchanged.  Adds to those open already.
  void connect(int sends, int receives);
  void close_connections();

  // Registers `buffer` on every connection of one direction; the result is parallel to it.
  std::vector<void*> register_on(const std::vector<void*>& comms, Buffer& buffer);
  void deregister(const std::vector<void*>& comms, const std::vector<void*>& memories);

  // Throws Failure with the operation, the device and what the result means.
  void check(NetResult r, const char* operation) const;
  // Index of the device with that index or name; throws when there is none.
  int find_device(const std::string& wanted);
  // To be called in every polling loop round that made no progress; `detail` says at a time-out
  // how far it had come.
  template <class Detail>
  void idle(Detail detail) {
    if (rest()) time_out(detail());
  }
  void idle() {
    if (rest()) time_out("");
  }
  [[noreturn]] void time_out(const std::string& detail) const;

  // Both workers of the pair arrive here; nothing of the plugin runs meanwhile.
  void pair_barrier();
  // What the peer's clock shows beyond this one's, ns; 0 when both are on one host.  Clocks of two
  // hosts drift: ask before each use.
  std::int64_t peer_clock_ahead();
  template <class T>
  T exchange(const T& mine) {
    T theirs{};
    peer.send(&mine, sizeof mine);
    peer.receive(&theirs, sizeof theirs, deadline_ns,
                 "the other end, in phase '" + reporter.current() + "'");
    return theirs;
  }

  const Options& options;
  const int rank;
  Reporter& reporter;
  Channel& peer;
  std::unique_ptr<NetPlugin> plugin;
  int device = 0;
  NetProperties props;
  std::shared_ptr<CudaDriver> gpu;
  std::int64_t deadline_ns;
  std::vector<void*> sends, receives;  // comms

 private:
  bool rest();  // true: past the deadline
  std::uint64_t idle_rounds_ = 0;
};

// User and system time of this process, all threads.
std::int64_t cpu_ns();

}  // namespace twinpath::tools
