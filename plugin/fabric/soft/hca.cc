// The adapter of this process: slot, devices, contexts, QP numbers, ports.
#include "plugin/fabric/soft/hca.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "plugin/base/log.h"
#include "plugin/base/refused.h"

namespace twinpath::soft {
namespace {

std::mutex instance_lock;
std::atomic<Hca*> instance_of_process{nullptr};

std::uint32_t fnv(std::string_view s) {
  std::uint32_t h = 2166136261u;
  for (char c : s) h = (h ^ static_cast<unsigned char>(c)) * 16777619u;
  return h;
}

// The kernel's Yama module (ptrace_scope 1) lets only ancestors read a process's memory unless
// the process says otherwise; direct copies between ranks need it said.
void allow_direct_copies() {
  FILE* f = std::fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
  if (f == nullptr) return;
  int scope = 0;
  if (std::fscanf(f, "%d", &scope) == 1 && scope == 1) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  std::fclose(f);
}

// Lets other processes order our memory accesses against theirs (activity.cc).
bool may_be_fenced() {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0) return true;
  TP_INFO(
      net,
      "soft HCA: membarrier: %s: queue pairs that nobody uses cost time (Linux 4.16 has it, and "
      "a container's seccomp profile may keep it away)",
      std::strerror(errno));
  return false;
}

}  // namespace

Result<Hca*> Hca::instance(const Config& config, std::string& why) {
  std::lock_guard hold(instance_lock);
  if (Hca* h = instance_of_process.load()) return h;
  std::unique_ptr<Hca> h(new Hca(config));
  if (Status s = h->start(why); s != Status::ok) return s;
  instance_of_process.store(h.get());
  return h.release();
}

Hca* Hca::existing() { return instance_of_process.load(); }

void Hca::before_fork() {
  instance_lock.lock();
  if (Hca* h = existing()) {
    h->sockets_.before_fork();
    h->lock_.lock();
    h->team_.before_fork();
  }
}

void Hca::after_fork(bool in_child) {
  if (Hca* h = existing()) {
    h->team_.after_fork(in_child);
    h->lock_.unlock();
    h->sockets_.after_fork(in_child);
  }
  instance_lock.unlock();
}

Hca::Hca(const Config& config)
    : config_(config),
      team_(config.soft_copy_threads),
      sockets_(config.soft_job, kSlots, config.soft_direct),
      rest_(config.soft_engine) {}

Status Hca::start(std::string& why) {
  if (!faults_.set(config_.soft_faults, why)) {
    why = "TWINPATH_SOFT_FAULTS: " + why;
    return Status::bad_argument;
  }
  posted_.set_delay(faults_.late_us() * 1000);
  // The job is told apart by user, name and mount of /tmp-independent identity: the boot id keeps
  // equal names on two hosts from looking alike.
  char boot[64] = "";
  if (FILE* f = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    if (std::fgets(boot, sizeof boot, f) == nullptr) boot[0] = 0;
    std::fclose(f);
  }
  addresses_ = PortAddresses(fnv(sockets_.prefix() + boot));
  auto keys = KeyTable::create();
  if (!keys) {
    why = "no shared memory for the key table";
    return keys.status();
  }
  keys_ = std::move(keys).take();
  if (config_.soft_direct) allow_direct_copies();
  if (may_be_fenced()) activity_.let_sleep();
  TP_TRY(sockets_.start(*keys_, why));
  pthread_atfork([] { Hca::before_fork(); }, [] { Hca::after_fork(false); },
                 [] { Hca::after_fork(true); });
  try {
    engine_ = std::thread([this] { engine_loop(); });
  } catch (const std::system_error& error) {
    why = "no thread can be started: " + why_no_thread(error.code().value());
    return Status::system;
  }
  pthread_setname_np(engine_.native_handle(), "twinpath-hca");
  engine_.detach();  // lives as long as the process, as an adapter does
  return Status::ok;
}

bool Hca::set_devices(const std::string& spec, std::string& why) {
  auto parsed = parse_device_specs(spec, why);
  if (!parsed) return false;
  std::lock_guard hold(lock_);
  devices_.show(std::move(*parsed), this);
  for (SoftDevice* device : devices_.shown()) {
    const bool slow = device->index == faults_.slow_device();
    device->rates[1].set(slow ? faults_.slow_mbps() : 0);
    if (slow) device->limited.store(true, std::memory_order_relaxed);
  }
  return true;
}

std::vector<SoftDevice*> Hca::devices() {
  std::lock_guard hold(lock_);
  return devices_.shown();
}

bool Hca::add_qp(SoftQp* qp) {
  std::lock_guard hold(lock_);
  if (qps_.add(*qp, slot())) return true;
  TP_WARN("soft HCA: all %u queue pairs of this process are in use", kQpsPerProcess);
  return false;
}

void Hca::remove_qp(SoftQp* qp) {
  std::lock_guard hold(lock_);
  qps_.remove(*qp);
  activity_.forget(qp);
  offers_.forget(qp->qp_num);
}

void Hca::add_context(SoftContext* context) {
  std::lock_guard hold(lock_);
  contexts_.push_back(context);
}

void Hca::remove_context(SoftContext* context) {
  {
    std::lock_guard hold(lock_);
    std::erase(contexts_, context);
    if (!contexts_.empty()) return;
  }
  team_.rest();  // nobody is left to copy for
}

// Lock held.
void Hca::tell(const SoftDevice& device, int port, ibv_event_type type) {
  for (SoftContext* c : contexts_) {
    if (c->soft_device != &device) continue;
    ibv_async_event e{};
    e.event_type = type;
    e.element.port_num = port;
    c->events.push(e);
  }
}

void Hca::set_port(SoftDevice& device, int port, bool up) {
  std::lock_guard hold(lock_);
  if (device.port_up(port) == up) return;
  device.ports_down.fetch_xor(1u << port);
  for (SoftQp* qp : qps_.live()) {
    if (qp->soft_context->soft_device != &device) continue;
    std::lock_guard hold_qp(qp->lock);
    if (qp->attr.port_num == port) set_carrier(*qp, device.carries(port));
    rouse_if_asleep(*qp);
  }
  tell(device, port, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

void Hca::set_lid(SoftDevice& device, int port, std::uint16_t lid) {
  std::lock_guard hold(lock_);
  device.lids[static_cast<std::size_t>(port)].store(lid, std::memory_order_release);
  for (SoftQp* qp : qps_.live()) {
    if (qp->soft_context->soft_device != &device) continue;
    std::lock_guard hold_qp(qp->lock);
    if (qp->attr.port_num == port && qp->link.mine != nullptr)
      qp->link.mine->lid.store(lid, std::memory_order_release);
    rouse_if_asleep(*qp);
  }
  tell(device, port, IBV_EVENT_LID_CHANGE);
}

void Hca::set_loss(SoftDevice& device, int port, PortLoss loss) {
  std::lock_guard hold(lock_);
  const std::uint32_t bit = 1u << port;
  const auto set = [bit](std::atomic<std::uint32_t>& bits, bool on) {
    if (on) {
      bits.fetch_or(bit);
    } else {
      bits.fetch_and(~bit);
    }
  };
  set(device.ports_silent, loss == PortLoss::all);
  set(device.ports_deaf, loss == PortLoss::incoming);
  set(device.ports_unanswered, loss == PortLoss::incoming || loss == PortLoss::answers);
  for (SoftQp* qp : qps_.live()) {
    if (qp->soft_context->soft_device != &device) continue;
    std::lock_guard hold_qp(qp->lock);
    if (qp->attr.port_num == port) {
      set_carrier(*qp, device.carries(port));
      take_losses(*qp);
    }
    rouse_if_asleep(*qp);
  }
}

}  // namespace twinpath::soft
