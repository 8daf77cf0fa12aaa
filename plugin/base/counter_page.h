#pragma once
// The writer's side of a process's counters (counters.h): makes the page, and gives connections
// their places in it.
//
// The page is a memfd, so other processes of the same user find it in /proc/PID/fd, nobody else
// does, and it goes with the process.  Its pages are reserved as connections need them.  A
// connection that finds no place counts into memory of its own: whoever counts need not know.
//
// Threads: any.
#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "plugin/base/counters.h"
#include "plugin/base/shared_memory.h"

namespace twinpath {

class CounterPage;

// A connection's counters, from its beginning to its end.  Movable.
class ConnectionCounts {
 public:
  // Counts that nobody reads.
  ConnectionCounts();
  ConnectionCounts(ConnectionCounts&&) noexcept = default;
  ConnectionCounts& operator=(ConnectionCounts&&) = delete;
  ~ConnectionCounts();
  // Stays where it is, whatever is moved.
  counters::Connection* get() const { return at_; }
  // The connection broke: its last counts are left behind, where that was asked for.
  void lost();

 private:
  friend class CounterPage;
  ConnectionCounts(std::shared_ptr<CounterPage> page, counters::Connection* at);
  std::shared_ptr<CounterPage> page_;
  std::unique_ptr<counters::Connection> own_;
  counters::Connection* at_;
};

class CounterPage : public std::enable_shared_from_this<CounterPage> {
 public:
  // `leave_in`: a folder for a copy of the page when a connection is lost and when the last one
  // closes; empty: none.  Null (logged) without memory: the plugin then works uncounted.
  static std::shared_ptr<CounterPage> create(const std::string& host, const std::string& version,
                                             const std::string& leave_in);
  // Null where there is no place for it.
  counters::PortCounts* add_port(const std::string& name, const std::string& device, int number,
                                 int speed_mbps);
  counters::MemoryCounts& memory() { return page_->memory; }
  counters::MoveCounts& rma() { return page_->rma; }
  // Index of the port with that name; 0 when there is none.
  std::uint8_t port(std::string_view name) const;
  ConnectionCounts open(const counters::Identity& who);
  // Gives a communicator a name.  It is kept after end_communicator until all places are taken;
  // then the one that ended first gives its place.  Null where none has ended.
  counters::Communicator* begin_communicator(const counters::CommunicatorIdentity& who);
  // What is no living communicator of this page is passed over.
  void end_communicator(const void* communicator);
  // Counts of a GPU's engine, until they are let go; they go on with those of an earlier one. Where
  // there is no place: counts that nobody reads.
  std::shared_ptr<counters::GinCounts> open_gin(int gpu);
  // Writes the copy, again if there is one.
  void leave_behind();
  // For tests: what a reader sees, and the memory's descriptor.
  const counters::Process& process() const { return *page_; }
  const counters::Connection& at(std::uint32_t index) const { return connection(index); }
  int fd() const { return memory_.fd(); }

 private:
  friend class ConnectionCounts;
  CounterPage(SharedMemory memory, std::string leave_in);
  counters::Connection& connection(std::uint32_t index) const;
  counters::Connection* place_for(const counters::Identity& who);
  void close(counters::Connection& connection);
  void leave_behind_soon();
  void copy_page(char* to, std::size_t bytes);

  SharedMemory memory_;
  counters::Process* const page_;
  const std::string leave_in_;
  std::mutex mutex_;          // places
  std::size_t reserved_ = 0;  // bytes
  std::uint32_t open_ = 0;
  std::uint32_t closed_ = 0;
  std::array<bool, counters::kMaxGinEngines> gin_in_use_{};
  std::deque<std::uint32_t> ended_;  // communicators, the first to end in front
  std::mutex copying_;
  std::int64_t copied_at_ = 0;
};

// Cut where it is too long.
template <std::size_t N>
void put_name(counters::Name<N>& to, std::string_view text) {
  to = {};
  text.substr(0, N - 1).copy(to.data(), N - 1);
}

}  // namespace twinpath
