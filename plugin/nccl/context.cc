#include "plugin/nccl/context.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include "plugin/base/config.h"
#include "plugin/base/cpus.h"
#include "plugin/base/log.h"
#include "plugin/base/options.h"
#include "plugin/base/own_folder.h"
#include "plugin/base/shared_log.h"
#include "plugin/base/version.h"
#include "plugin/nccl/caller.h"
#include "plugin/nccl/default_name.h"
#include "plugin/nccl/tuning.h"

namespace twinpath {
namespace detail {
constinit std::atomic<bool> forked{false};
}
namespace {

// The process-wide state of this layer; NCCL's tables have no place for it.
constinit std::atomic<Context*> g_context{nullptr};
constinit std::mutex g_open_mutex;
constinit std::atomic<pid_t> g_owner{0};
constinit std::atomic<bool> g_fork_reported{false};

// From the first attempt to open on: a child that is forked during it must not wait for
// g_open_mutex, whose owner does not exist there.
void watch_forks() {
  if (g_owner.exchange(::getpid()) != 0) return;
  (void)::pthread_atfork(nullptr, nullptr,
                         [] { detail::forked.store(true, std::memory_order_relaxed); });
}

// The fabric has told each port's details; this line says what NCCL gets.
void log_devices(const Transport& transport, FabricKind kind) {
  std::string names;
  for (int i = 0; i < static_cast<int>(transport.device_count()); ++i) {
    if (auto props = transport.device(i)) names += (i == 0 ? ": " : ", ") + props->name;
  }
  TP_INFO(init, "version %s, %s, %zu device%s%s", built_from(),
          kind == FabricKind::soft ? "soft HCA" : "verbs", transport.device_count(),
          transport.device_count() == 1 ? "" : "s", names.c_str());
}

// In init a refused setting is a usage error: that is how NCCL words it to the user.
Status as_usage(Status status) {
  return status == Status::bad_argument ? Status::unsupported : status;
}

}  // namespace

Context::Context(Transports transports, const Config& config)
    : counters_(std::move(transports.counters)),
      transport_(std::move(transports.proxy)),
      may_merge_(config.ib_merge_nics),
      physical_(static_cast<int>(transport_->device_count())),
      visible_(physical_),
      offers_gin_(config.gin),
      make_gin_(std::move(transports.make_gin)),
      offers_rma_(config.rma < 0 ? config.fabric != FabricChoice::soft : config.rma != 0),
      make_rma_(std::move(transports.make_rma)) {}

Context* Context::get() { return g_context.load(std::memory_order_acquire); }

Result<Context*> Context::open() {
  watch_forks();
  const std::lock_guard lock(g_open_mutex);
  if (Context* context = get()) return context;
  Config config = config_from_environment();
  const Tuning tuning = choose_tuning(
      config, [](const char* name) { return std::getenv(name); },
      [] { return find_tuner(own_folder()); });
  // Both judge by one level.
  if (const char* level = tuning.gdr_level()) config.net_gdr_level = level;
  auto transports = open_transports(config);
  if (!transports) return as_usage(transports.status());
  log_devices(*transports->proxy, transports->kind);
  // Without a device NCCL goes on with another transport, which must not feel it.
  if (transports->proxy->device_count() > 0) {
    if (const std::string text = held_on_few(); !text.empty()) TP_WARN("%s", text.c_str());
    apply_tuning(tuning);
    keep_default_name(own_folder(), nccl_version_of(log_state().sink));
  }
  auto* context = new Context(std::move(transports).take(), config);
  g_context.store(context, std::memory_order_release);
  return context;
}

int Context::device_count() {
  const std::lock_guard lock(mutex_);
  return visible_;
}

void Context::note_init() {
  const std::lock_guard lock(mutex_);
  if (!open_sessions_.empty()) return;
  visible_ = physical_;
  own_profiler_.store(false, std::memory_order_relaxed);
}

Result<const DeviceProps*> Context::device(int index) {
  const std::lock_guard lock(mutex_);
  // Asked anew each time: the answer is the calling thread's GPU's.
  auto props = transport_->device(index);
  if (!props) {
    TP_WARN("device %d does not exist; there are %zu", index, transport_->device_count());
    return props.status();
  }
  auto& known = devices_[{index, props->gpu_direct, props->dmabuf}];
  if (known == nullptr) known = std::make_unique<DeviceProps>(std::move(props).take());
  return static_cast<const DeviceProps*>(known.get());
}

Status Context::check_member(int member) {
  if (member >= 0 && member < physical_) return Status::ok;
  TP_WARN("makeVDevice: member %d is not a physical device; those are 0 to %d", member,
          physical_ - 1);
  return Status::bad_argument;
}

// Refused, NCCL searches on with the devices apart.  Without a PCI path (a software adapter, a VF
// of some virtual machines) it must be: the parent that devices of one first CPU have in common is
// a "nic" node, NCCL hangs the merged device's own "nic" below it, and reads no "nic" within a
// "nic" (2.28.9 graph/topo.cc, ncclTopoGetVNicParent and ncclTopoAddNic).  Its members are gone by
// then.
Status Context::check_merge(std::span<const int> members) {
  if (may_merge_ == 0) {
    TP_INFO(net, "makeVDevice: devices stay apart because of NCCL_IB_MERGE_NICS=0");
    return Status::unsupported;
  }
  for (const int member : members) {
    auto props = transport_->device(member);
    if (!props) return props.status();
    if (may_merge_ < 0 && props->pci_path.empty()) {
      TP_INFO(net,
              "makeVDevice: devices stay apart because %s has no PCI path, without which NCCL's "
              "topology loses a merged one (NCCL_IB_MERGE_NICS=1 merges it nevertheless)",
              props->name.c_str());
      return Status::unsupported;
    }
  }
  return Status::ok;
}

Result<int> Context::merge(std::span<const int> members) {
  const std::lock_guard lock(mutex_);
  for (const int member : members) TP_TRY(check_member(member));
  if (members.size() > 1) TP_TRY(check_merge(members));
  std::vector<int> key(members.begin(), members.end());
  auto known = merged_.find(key);
  if (known == merged_.end()) {
    auto index = transport_->make_virtual_device(members);
    if (!index) return index.status();
    known = merged_.emplace(std::move(key), *index).first;
  }
  visible_ = std::max(visible_, known->second + 1);
  return known->second;
}

Result<Session*> Context::open_session(CommSettings settings) {
  {
    const std::lock_guard lock(mutex_);
    settings.serial = serials_ = static_cast<std::uint16_t>(serials_ % 0xffff + 1);
  }
  auto session = transport_->open_session(settings);
  if (!session) return session.status();
  const std::lock_guard lock(mutex_);
  open_sessions_[session->get()] = {settings.comm_id, settings.serial, std::this_thread::get_id(),
                                    false};
  return std::move(session).take().release();
}

void Context::close_session(Session* session) {
  {
    // First: afterwards a new session may have the address.
    const std::lock_guard lock(mutex_);
    open_sessions_.erase(session);
  }
  delete session;
}

counters::Communicator* Context::begin_communicator(counters::CommunicatorIdentity who) {
  if (counters_ == nullptr) return nullptr;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [session, opened] : open_sessions_) {
      if (opened.comm_id != who.id || opened.by != std::this_thread::get_id() || opened.named)
        continue;
      opened.named = true;
      who.session = opened.serial;
      break;
    }
  }
  return counters_->begin_communicator(who);
}

void Context::end_communicator(const void* communicator) {
  if (counters_ != nullptr) counters_->end_communicator(communicator);
}

Result<Session*> Context::shared_session(int traffic_class) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Session>& slot = shared_[traffic_class];
  if (!slot) {
    auto session = transport_->open_session({.comm_id = 0, .traffic_class = traffic_class});
    if (!session) return session.status();
    slot = std::move(session).take();
  }
  return slot.get();
}

Result<gda::GinTransport*> Context::gin() {
  const std::lock_guard lock(gin_mutex_);
  if (!gin_) {
    auto made = make_gin_();
    if (!made) return made.status();
    gin_ = std::move(made).take();
  }
  return gin_.get();
}

Result<gda::RmaTransport*> Context::rma() {
  const std::lock_guard lock(rma_mutex_);
  if (!rma_) {
    auto made = make_rma_();
    if (!made) return made.status();
    rma_ = std::move(made).take();
  }
  return rma_.get();
}

void report_forked_child(const char* entry) {
  if (g_fork_reported.exchange(true)) return;
  TP_WARN(
      "%s: process %d was forked from process %d, which had the plugin open; the network "
      "cannot be used in it. Fork before the first communicator, or exec in the child",
      entry, static_cast<int>(::getpid()), static_cast<int>(g_owner.load()));
}

}  // namespace twinpath
