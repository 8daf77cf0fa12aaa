#pragma once
// Counters as Prometheus' text format.
//
// Series are bounded: of each process the kMostPeers peers that it waited for longest (a peer in
// two communicators counts twice) have series of their own, the others are added up under peer
// "other".  A process that has ended has none.
#include <memory>
#include <string>
#include <vector>

#include "tools/counters/nics.h"
#include "tools/counters/view.h"

namespace twinpath::tools {

inline constexpr std::size_t kMostPeers = 32;

// Takes process by process, so that no more than one of them is in memory.
class PrometheusText {
 public:
  PrometheusText();
  ~PrometheusText();
  PrometheusText(const PrometheusText&) = delete;
  PrometheusText& operator=(const PrometheusText&) = delete;
  // By ascending pid.
  void add(ProcessSample process);
  // `node`: this host's name, for what belongs to no process.  Once.
  std::string text(const std::vector<NicCounter>& nics, const std::string& node,
                   std::size_t left_out);
  class Families;

 private:
  std::unique_ptr<Families> families_;
  std::size_t processes_ = 0;
  int last_pid_ = 0;
};

}  // namespace twinpath::tools
