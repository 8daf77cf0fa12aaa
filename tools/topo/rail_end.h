#pragma once
// One end of a pair of rails that is tried: makes a connection through the plugin, and sends or
// receives 1 MiB of a pattern of its own.
//
// Threads: one.  Ownership: the plugin outlives it.
#include <cstdint>
#include <string>
#include <vector>

#include "tools/common/net_plugin.h"

namespace twinpath::tools::topo {

class End {
 public:
  End(NetPlugin& plugin, bool sends, int pair, int device);
  ~End();
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void listen(NetHandle& handle);
  void goes_to(const NetHandle& handle) { handle_ = handle; }
  void start();
  // Something to be done, and no failure.
  bool busy() const { return why_.empty() && !moved_; }
  void step();
  // 1 MiB more, after a first.
  void again();
  void give_up(double waited_s);
  void fail(const std::string& why) {
    if (why_.empty()) why_ = why;
  }
  // The failure: the plugin's own words where it warned of it.  Empty: none.
  const std::string& why() const { return why_; }
  double connect_ms() const { return connect_ms_; }
  double us() const { return us_; }

 private:
  bool good(NetResult r, const char* what);
  void connect();
  void post();
  void look();

  NetPlugin& plugin_;
  const bool sends_;
  const int pair_, device_;
  std::vector<std::uint8_t> bytes_;
  NetHandle handle_{};
  void *listen_ = nullptr, *comm_ = nullptr, *memory_ = nullptr, *request_ = nullptr;
  std::int64_t begin_ = 0;
  double connect_ms_ = 0, us_ = 0;
  bool moved_ = false;
  std::string why_;
};

// The cause in a warning of the plugin's, without who says it of which connection.  Pure.
std::string cause_in(const std::string& warning);

}  // namespace twinpath::tools::topo
