#pragma once
// One rank of the random client of one-sided tables: communicators with lanes both ways, until the
// scene's end.
#include <atomic>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "test/abi/one_sided_lanes.h"
#include "test/abi/random_side.h"
#include "test/fabric/traffic.h"

namespace twinpath::test {

class OneSidedRank : private RandomSide, private AllGather {
 public:
  // `marks`: by SidedScene::lane_of, shared with the other rank.
  OneSidedRank(SidedPlugin& plugin, const World& world, const SidedScene& scene, int side, int peer,
               LaneMarks* marks)
      : RandomSide(scene, side, peer, world.may_lose),
        plugin_(plugin),
        world_(world),
        scene_(scene),
        marks_(marks),
        random_(static_cast<unsigned>(scene.lanes[0].seed) + static_cast<unsigned>(side)) {}
  // Empty, or what is not as it should be.
  std::string play(LogSink log);

 private:
  struct Member {
    int number = 0;
    std::unique_ptr<SidedComm> comm;
    std::vector<LaneSource> sources;
    std::vector<LaneSink> sinks;
    std::unique_ptr<OwnPages> out, in;
    SidedWindows windows;
  };
  using Share = std::vector<Member*>;  // driven by one thread

  int ranks() const override { return 2; }
  std::vector<Handle> all_gather(int rank, const Handle& mine) override;
  std::size_t window_bytes(int comm) const;
  void connect(LogSink log);
  void add(int comm, std::unique_ptr<SidedComm> made);
  void work(const Share& share);
  bool play_act(const Share& share, std::uint64_t number);
  bool begin_act(Member& m);
  void end_act(Member& m);
  // False: it is lost.
  bool step(Member& m, std::uint64_t target);
  bool over(const Member& m, std::uint64_t number);
  bool wrong(Member& m, const std::string& what);
  std::uint64_t moved(const Share& share) const;
  void settle(const Share& share);
  void give_back(Member& m, SidedWindow& window, std::unique_ptr<OwnPages>& pages);
  void close(Member& m);
  void wait_for_failure(Member& m);

  SidedPlugin& plugin_;
  const World& world_;
  const SidedScene& scene_;
  LaneMarks* const marks_;
  std::minstd_rand random_;
  std::deque<Member> members_;
  std::vector<std::uint8_t> expected_ = std::vector<std::uint8_t>(kStaticBytes);  // of reads
  std::deque<std::unique_ptr<OwnPages>> others_;  // given back, by whatever thread: lock_
  bool touched_ = false;                          // lock_
  bool connected_ = false;
  std::atomic<bool> lost_{false};
};

}  // namespace twinpath::test
