#include "tools/topo/rail_end.h"

#include <algorithm>
#include <string_view>

#include "plugin/base/clock.h"
#include "tools/topo/names.h"

namespace twinpath::tools::topo {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << 20;
constexpr int kTag = 7;

// No other pair's bytes, and none that lie there by chance.
void write_pattern(std::vector<std::uint8_t>& bytes, int pair) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] =
        static_cast<std::uint8_t>(i * 31 + (i >> 8) * 7 + static_cast<std::size_t>(pair) + 1);
}

}  // namespace

End::End(NetPlugin& plugin, bool sends, int pair, int device)
    : plugin_(plugin), sends_(sends), pair_(pair), device_(device), bytes_(kBytes) {
  if (sends_) write_pattern(bytes_, pair_);
}

End::~End() {
  if (memory_ != nullptr) (void)plugin_.dereg_mr(comm_, memory_);
  if (comm_ != nullptr) (void)(sends_ ? plugin_.close_send(comm_) : plugin_.close_recv(comm_));
  if (listen_ != nullptr) (void)plugin_.close_listen(listen_);
}

void End::listen(NetHandle& handle) {
  (void)take_warning();
  if (!good(plugin_.listen(device_, handle, &listen_), "listen")) listen_ = nullptr;
}

void End::start() { begin_ = now_ns(); }

void End::step() {
  if (!busy()) return;
  (void)take_warning();  // of other ends' calls
  if (comm_ == nullptr) return connect();
  if (request_ == nullptr) return post();
  int done = 0, bytes = 0;
  if (!good(plugin_.test(request_, &done, &bytes), "the transfer of 1 MiB") || done == 0) return;
  request_ = nullptr;
  us_ = static_cast<double>(now_ns() - begin_) / 1e3;
  moved_ = true;
  if (!sends_) look();
}

void End::again() {
  moved_ = false;
  if (!sends_) std::fill(bytes_.begin(), bytes_.end(), std::uint8_t{0});
  begin_ = now_ns();
}

void End::give_up(double waited_s) {
  if (busy())
    why_ = std::string(comm_ == nullptr ? "no connection" : "connected, but 1 MiB did not pass") +
           " within " + number(waited_s, 0) + " s";
}

bool End::good(NetResult r, const char* what) {
  if (r == 0) return true;
  const std::string cause = cause_in(take_warning());
  why_ = cause.empty() ? std::string(what) + " failed: " + net_result_name(r) : cause;
  return false;
}

void End::connect() {
  if (!good(sends_ ? plugin_.connect(device_, handle_, &comm_) : plugin_.accept(listen_, &comm_),
            "the connection") ||
      comm_ == nullptr)
    return;
  connect_ms_ = static_cast<double>(now_ns() - begin_) / 1e6;
  (void)good(plugin_.reg_mr(comm_, bytes_.data(), bytes_.size(), kMemoryHost, &memory_),
             "registering memory");
  begin_ = now_ns();
}

void End::post() {
  if (sends_) {
    (void)good(plugin_.isend(comm_, bytes_.data(), bytes_.size(), kTag, memory_, &request_),
               "sending");
    return;
  }
  void* data = bytes_.data();
  std::size_t size = bytes_.size();
  int tag = kTag;
  (void)good(plugin_.irecv(comm_, 1, &data, &size, &tag, &memory_, &request_), "receiving");
}

void End::look() {
  std::vector<std::uint8_t> wanted(bytes_.size());
  write_pattern(wanted, pair_);
  if (bytes_ != wanted) why_ = "wrong bytes came";
}

std::string cause_in(const std::string& warning) {
  constexpr std::string_view kUs = "NET/Twinpath: ";
  std::string out = warning;
  if (out.starts_with(kUs)) out.erase(0, kUs.size());
  const std::size_t end = out.find(": ");  // addresses have no blank behind their colons
  const std::string who = out.substr(0, end);
  const bool known = who.starts_with("no connection from ") ||
                     who.find(" refused the connection from ") != std::string::npos;
  return known && end != std::string::npos ? out.substr(end + 2) : out;
}

}  // namespace twinpath::tools::topo
