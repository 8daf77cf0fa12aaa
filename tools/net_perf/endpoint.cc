#include "tools/net_perf/endpoint.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <limits>

#include "plugin/base/clock.h"
#include "tools/common/failure.h"
#include "tools/common/pattern.h"
#include "tools/common/units.h"

namespace twinpath::tools {

std::int64_t cpu_ns() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  const auto ns = [](const timeval& t) {
    return std::int64_t{t.tv_sec} * kSecond + std::int64_t{t.tv_usec} * 1000;
  };
  return ns(u.ru_utime) + ns(u.ru_stime);
}

void Reporter::phase(const std::string& name) {
  phase_ = name;
  channel_.send_line({{"phase", name}});
}

void Reporter::barrier(std::int64_t deadline_ns) {
  channel_.send_line({{"barrier", true}});
  char go = 0;
  channel_.receive(&go, 1, deadline_ns, "the other workers");
}

// --- Buffer ---------------------------------------------------------------------------

Buffer::Buffer(std::size_t bytes, std::shared_ptr<CudaDriver> gpu, bool vmm)
    : bytes_(bytes == 0 ? 1 : bytes), gpu_(std::move(gpu)) {
  if (gpu_) {
    std::string why;
    data_ = static_cast<std::uint8_t*>(gpu_->allocate(bytes_, vmm, why));
    if (data_ == nullptr) throw Failure("cannot allocate " + format_bytes(bytes_) + ": " + why);
    return;
  }
  void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (p == MAP_FAILED)
    throw Failure("cannot allocate " + format_bytes(bytes_) +
                  " of memory: " + std::strerror(errno) + "; use smaller --sizes or --window");
  data_ = static_cast<std::uint8_t*>(p);
}

Buffer::~Buffer() {
  if (gpu_)
    gpu_->release(data_);
  else
    munmap(data_, bytes_);
}

void Buffer::write_pattern(std::size_t offset, std::size_t bytes, std::uint64_t seed) {
  if (!gpu_) return fill_pattern(data_ + offset, bytes, seed);
  staging_.resize(bytes);
  fill_pattern(staging_.data(), bytes, seed);
  if (bytes != 0 && !gpu_->copy_in(data_ + offset, staging_.data(), bytes))
    throw Failure("copying a pattern to the GPU failed");
}

std::ptrdiff_t Buffer::check_pattern(std::size_t offset, std::size_t bytes, std::uint64_t seed,
                                     std::size_t from) {
  const std::uint8_t* p = data_ + offset;
  if (gpu_) {
    staging_.resize(bytes);
    if (bytes != 0 && !gpu_->copy_out(staging_.data(), p, bytes))
      throw Failure("copying received data from the GPU failed");
    p = staging_.data();
  }
  const auto wrong = find_mismatch(p, bytes, seed, from);
  return wrong ? static_cast<std::ptrdiff_t>(*wrong) : -1;
}

// --- Endpoint -------------------------------------------------------------------------

Endpoint::Endpoint(const Options& o, int r, Reporter& rep, Channel& p)
    : options(o),
      rank(r),
      reporter(rep),
      peer(p),
      deadline_ns(now_ns() + static_cast<std::int64_t>(o.timeout_s * 1e9)) {
  rlimit files{};  // a connection may take several descriptors
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  std::string why;
  if (!o.gpus.empty()) {
    gpu = CudaDriver::open(o.gpus[static_cast<std::size_t>(r) % o.gpus.size()], why);
    if (!gpu) throw Failure(why);
  }
  reporter.phase("load plugin");
  plugin = NetPlugin::open(o.plugin, o.abi, o.verbose ? NetLog::info : NetLog::warnings, why);
  if (!plugin) throw Failure(why);
  device = find_device(o.devices[static_cast<std::size_t>(r) % o.devices.size()]);
  check(plugin->properties(device, props), "getProperties");
  if (gpu && !o.dmabuf && (props.memory & kMemoryCuda) == 0)
    throw Failure(props.name + " takes no CUDA memory; leave --gpu out, or see why with --verbose");
  if (gpu && o.dmabuf && (props.memory & kMemoryDmabuf) == 0)
    throw Failure(props.name + " takes no dma-buf; leave --dmabuf out");
  if (o.group > props.max_recvs)
    throw Failure(props.name + " groups at most " + std::to_string(props.max_recvs) +
                  " receives; use --group " + std::to_string(props.max_recvs));
}

Endpoint::~Endpoint() { close_connections(); }

int Endpoint::find_device(const std::string& wanted) {
  std::string why;
  const int found = find_net_device(*plugin, wanted, why);
  if (found < 0) throw Failure(options.plugin + ": " + why);
  return found;
}

void Endpoint::check(NetResult r, const char* operation) const {
  if (r == 0) return;
  throw Failure(std::string(operation) + " on " + (props.name.empty() ? "the plugin" : props.name) +
                " failed in phase '" + reporter.current() + "': " + net_result_name(r) +
                "; the plugin's warnings say why");
}

void Endpoint::time_out(const std::string& detail) const {
  throw Failure("timed out after " + fixed(options.timeout_s, 1) + " s in phase '" +
                reporter.current() + "'" + (detail.empty() ? "" : ": " + detail) +
                "; raise --timeout if this was not stuck");
}

bool Endpoint::rest() {
  ++idle_rounds_;
  if (options.yield_every != 0 && idle_rounds_ % options.yield_every == 0) sched_yield();
  return idle_rounds_ % 1024 == 0 && now_ns() > deadline_ns;
}

void Endpoint::pair_barrier() {
  char c = 'b';
  (void)exchange(c);
}

std::int64_t Endpoint::peer_clock_ahead() {
  if (options.one_clock()) return 0;
  // The answer of the shortest round trip is the nearest to the truth, by half of that trip.
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max(), ahead = 0;
  for (int i = 0; i < 8; ++i) {
    const std::int64_t sent = now_ns();
    if (rank % 2 == 0) {
      std::int64_t theirs = 0;
      peer.send(&sent, sizeof sent);
      peer.receive(&theirs, sizeof theirs, deadline_ns, "the other end's clock");
      const std::int64_t trip = now_ns() - sent;
      if (trip < shortest) {
        shortest = trip;
        ahead = theirs - (sent + trip / 2);
      }
    } else {
      std::int64_t asked = 0;
      peer.receive(&asked, sizeof asked, deadline_ns, "the other end's clock");
      const std::int64_t mine = now_ns();
      peer.send(&mine, sizeof mine);
    }
  }
  if (rank % 2 == 0) {
    peer.send(&ahead, sizeof ahead);
    return ahead;
  }
  peer.receive(&ahead, sizeof ahead, deadline_ns, "the other end's clock");
  return -ahead;
}

void Endpoint::connect(int want_sends, int want_receives) {
  constexpr int kWave = 64;  // as many handshakes at a time
  while (want_sends > 0 || want_receives > 0) {
    const int n_send = std::min(want_sends, kWave), n_recv = std::min(want_receives, kWave);
    want_sends -= n_send;
    want_receives -= n_recv;
    std::vector<void*> listeners(static_cast<std::size_t>(n_recv));
    std::vector<NetHandle> handles(static_cast<std::size_t>(n_send));
    for (void*& l : listeners) {
      NetHandle handle{};
      check(plugin->listen(device, handle, &l), "listen");
      peer.send(handle.data(), handle.size());
    }
    for (NetHandle& h : handles) peer.receive(h.data(), h.size(), deadline_ns, "the peer's handle");
    int open_sends = 0, open_receives = 0;
    std::vector<void*> new_sends(handles.size()), new_receives(listeners.size());
    while (open_sends < n_send || open_receives < n_recv) {
      const int before = open_sends + open_receives;
      for (std::size_t i = 0; i < handles.size(); ++i) {
        if (new_sends[i] != nullptr) continue;
        check(plugin->connect(device, handles[i], &new_sends[i]), "connect");
        open_sends += new_sends[i] != nullptr ? 1 : 0;
      }
      for (std::size_t i = 0; i < listeners.size(); ++i) {
        if (new_receives[i] != nullptr) continue;
        check(plugin->accept(listeners[i], &new_receives[i]), "accept");
        if (new_receives[i] == nullptr) continue;
        ++open_receives;
        check(plugin->close_listen(listeners[i]), "closeListen");  // at once, as NCCL does
      }
      if (open_sends + open_receives != before) continue;
      sched_yield();  // a handshake is not worth a core
      idle();
    }
    sends.insert(sends.end(), new_sends.begin(), new_sends.end());
    receives.insert(receives.end(), new_receives.begin(), new_receives.end());
  }
}

Buffer Endpoint::buffer(std::size_t bytes) {
  reporter.phase("allocate " + format_bytes(bytes) + std::string(kOwnWork));
  return {bytes, gpu, options.vmm};
}

void Endpoint::close_connections() {
  for (void* c : sends) (void)plugin->close_send(c);
  for (void* c : receives) (void)plugin->close_recv(c);
  sends.clear();
  receives.clear();
}

std::vector<void*> Endpoint::register_on(const std::vector<void*>& comms, Buffer& buffer) {
  if (!comms.empty()) reporter.phase("register " + format_bytes(buffer.bytes()));
  std::vector<void*> memories(comms.size());
  const int type = buffer.on_gpu() ? kMemoryCuda : kMemoryHost;
  for (std::size_t i = 0; i < comms.size(); ++i) {
    if (options.dmabuf) {
      std::string why;
      const UniqueFd fd(gpu->export_dmabuf(buffer.data(), buffer.bytes(), why));
      if (!fd) throw Failure("no dma-buf of GPU memory: " + why);
      check(plugin->reg_mr_dmabuf(comms[i], buffer.data(), buffer.bytes(), type, 0, fd.get(),
                                  &memories[i]),
            "regMrDmaBuf");
    } else {
      check(plugin->reg_mr(comms[i], buffer.data(), buffer.bytes(), type, &memories[i]), "regMr");
    }
  }
  return memories;
}

void Endpoint::deregister(const std::vector<void*>& comms, const std::vector<void*>& memories) {
  for (std::size_t i = 0; i < memories.size(); ++i)
    check(plugin->dereg_mr(comms[i], memories[i]), "deregMr");
}

}  // namespace twinpath::tools
