#pragma once
// Carries out what stands in the queues of one opened context: a thread looks at the doorbells,
// reads the entries behind them, gives them to the software HCA (carrier.h), and writes
// completions.
//
// Queues lie in memory of the host, or of a GPU where somebody reaches that (surroundings.h).
// Shared receive queues of libibverbs are given receives by itself, or by a program in memory
// (shared_receives.h).
//
// Threads: any; one lock.
#include <infiniband/verbs.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "plugin/fabric/soft/mlx5/carrier.h"
#include "plugin/fabric/soft/mlx5/completion_queue.h"
#include "plugin/fabric/soft/mlx5/shared_receives.h"
#include "plugin/fabric/soft/mlx5/surroundings.h"

namespace twinpath::soft::mlx5 {

class Execution : public Queues {
 public:
  // `around` outlives it.
  explicit Execution(const Surroundings& around) : around_(around) {}
  ~Execution() override;

  // What the numbers in commands mean.  Objects of libibverbs, which outlive the queues that name
  // them.
  void know_pd(std::uint32_t number, ibv_pd* pd);
  void know_srq(std::uint32_t number, ibv_srq* srq);
  // Likewise, of which a program writes the receives into memory.
  void serve_srq(const SharedReceivesFacts& facts, ibv_srq* srq);
  void look_at_srq(std::uint32_t number);  // what was given until now is there afterwards
  void forget_srq(std::uint32_t number);
  // A doorbell page by its number, and its registers; it stays as long as this.  `arm`: where
  // completion queues are armed, or null.
  void know_page(std::uint32_t number, std::vector<std::uint64_t*> registers,
                 std::uint64_t* arm = nullptr);
  void forget_page(std::uint32_t number);

  void make(const CompletionQueueFacts& cq) override;
  bool resize(const CompletionQueueFacts& to) override;
  std::uint32_t make(const QueuePairFacts& qp) override;
  bool change(std::uint32_t qpn, State to, std::span<const std::uint8_t> context) override;
  bool failed(std::uint32_t qpn) override;
  void destroy_cq(std::uint32_t number) override;
  void destroy_qp(std::uint32_t number) override;
  // Nothing is carried out from now on, as where firmware ends.  What was acknowledged before has
  // its completion: an adapter writes that first.
  void end();

  // Datagrams to a group's GID; false: no such queue pair, or it is (not) in the group.
  using Group = std::array<std::uint8_t, 16>;
  bool change_member(std::uint32_t qpn, const Group& group, bool joins);

 private:
  struct Page {
    std::vector<std::uint64_t*> registers;
    std::uint64_t* arm = nullptr;
  };
  struct SharedQueue {
    ibv_srq* srq = nullptr;
    std::optional<SharedReceives> written;  // by a program
  };
  // An entry that was fetched and has not completed.
  struct Pending {
    Work work;
    std::uint64_t index = 0;  // of its first block
    bool done = false;
    Syndrome syndrome = Syndrome::none;
    std::uint32_t bytes = 0;  // that came
  };
  struct QueuePair {
    QueuePairFacts facts;
    std::unique_ptr<Carrier> carrier;
    State state{};
    bool failed = false;
    bool reachable = false;     // its memory can be read
    bool owed = false;          // its page was rung at, and its record was not read since
    std::uint64_t rung = 0;     // blocks that the program has written
    std::uint64_t fetched = 0;  // of which so many were read
    std::deque<Pending> pending;
    std::uint64_t receives_told = 0, receives_posted = 0;
    // Of datagrams.
    std::uint32_t qkey = 0;
    std::set<Group> groups;
  };

  void run();
  bool turn();
  bool look_at_doorbells();
  void take_word(std::uint32_t page, std::uint64_t word);
  bool look_at_unnamed();
  void look_at_arming(std::uint32_t page, std::uint64_t word);
  void look_at_record(QueuePair& qp);
  bool fetch(QueuePair& qp);
  bool look_at_receives(QueuePair& qp);
  Syndrome carry_out(const QueuePair& qp, const Work& work);
  // execution_datagrams.cc
  Syndrome send_datagram(const QueuePair& qp, const Work& work);
  bool take_datagrams();
  void deliver(QueuePair& qp, const Datagram& datagram);
  struct Receive {
    std::uint16_t index;
    std::vector<Piece> pieces;
  };
  std::optional<Receive> take_receive(QueuePair& qp);
  bool post_receives(QueuePair& qp);
  bool flush_receives(QueuePair& qp);
  bool collect(QueuePair& qp);
  bool retire(QueuePair& qp);
  void look_at_wait(const QueuePair& qp, Pending& entry);
  void look_at_dump(const QueuePair& qp, Pending& entry);
  void fail(QueuePair& qp);
  void complete(CompletionQueue& cq, const Completion& completion);
  CompletionQueue* find_cq(std::uint32_t number);

  void say(const char* format, ...) const __attribute__((format(printf, 2, 3)));

  const Surroundings& around_;
  std::mutex lock_;
  std::map<std::uint32_t, ibv_pd*> pds_;
  std::map<std::uint32_t, SharedQueue> srqs_;
  std::map<std::uint32_t, Page> pages_;
  std::map<std::uint32_t, CompletionQueue> cqs_;
  std::map<std::uint32_t, QueuePair> qps_;
  std::uint32_t last_owed_ = 0;  // whose record was read last among those that no word named
  int busy_turns_ = 0;           // in which none of theirs was read
  bool said_ = false;            // that something is not carried out
  bool stop_ = false;
  std::condition_variable work_;  // there is a queue pair, or the end
  std::thread thread_;
};

}  // namespace twinpath::soft::mlx5
