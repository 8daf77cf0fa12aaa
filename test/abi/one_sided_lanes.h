#pragma once
// The two ends of a lane of one-sided traffic (one_sided_plan.h).  They share marks, by which slots
// are given back and no signal is taken that nobody sent.
//
// Threads: one at a time for each end.
#include <deque>
#include <string>

#include "test/abi/one_sided_comm.h"
#include "test/abi/random_stage.h"

namespace twinpath::test {

// kStaticBytes of a rank, for the other one to read.
void fill_static(std::uint8_t* to, std::uint64_t seed, int rank);

// The own end of an outgoing lane.
class LaneSource {
 public:
  LaneSource(const Lane& plan, std::uint64_t at, SidedLane& lane, LaneMarks& marks)
      : plan_(plan), at_(at), lane_(lane), marks_(marks) {}
  // False: it is lost.  `target`: messages that the act ends with.
  bool step(const SidedWindows& w, std::uint8_t* out, std::uint64_t target);
  bool over(std::uint64_t target) const { return posted_ == target && under_way_.empty(); }
  std::uint64_t moved() const { return posted_ + retired_; }
  // Where data is read from and to, and what it must be then; set for each act.
  struct Reads {
    std::uint64_t from = 0, to = 0;
    const std::uint8_t* expected = nullptr;
    std::uint8_t* landed = nullptr;
  } reads;
  // Not what it should be; of a lost connection it may be that.
  const std::string& wrong() const { return wrong_; }

 private:
  struct UnderWay {
    std::uint64_t number, calls;  // ended when so many calls have
    std::uint64_t read;           // bytes that were read behind it
  };
  bool post(const SidedWindows& w, std::uint8_t* out);
  bool retire(std::uint8_t* out);

  const Lane& plan_;
  const std::uint64_t at_;
  SidedLane& lane_;
  LaneMarks& marks_;
  std::uint64_t posted_ = 0, retired_ = 0;
  std::deque<UnderWay> under_way_;
  bool reading_ = false;  // to where data lands, so one at a time
  std::string wrong_;
};

// The own end of an incoming one.
class LaneSink {
 public:
  LaneSink(const Lane& plan, std::uint64_t at, SidedLane& lane, LaneMarks& marks)
      : plan_(plan), at_(at), lane_(lane), marks_(marks) {}
  // Memory of an act, all of it new.
  void begin(std::uint8_t* in) const;
  void step(std::uint8_t* in);
  void end() { before_ = sum_; }
  bool over(std::uint64_t target) const { return verified_ == target; }
  std::uint64_t moved() const { return verified_; }
  const std::string& wrong() const { return wrong_; }

 private:
  void check(std::uint8_t* slot, const SidedMessage& m);

  const Lane& plan_;
  const std::uint64_t at_;
  SidedLane& lane_;
  LaneMarks& marks_;
  std::uint64_t verified_ = 0, sum_ = 0;     // messages, and their signals
  std::uint64_t begun_ = 0, sum_begun_ = 0;  // of what may have been sent
  std::uint64_t before_ = 0;                 // signals of earlier acts, where the word was another
  std::string wrong_;
};

}  // namespace twinpath::test
