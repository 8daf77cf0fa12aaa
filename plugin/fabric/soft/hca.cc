// The adapter of this process: slot, devices, QP numbers, joining QPs, CUDA allocations.
#include "plugin/fabric/soft/hca.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <random>

#include "plugin/base/log.h"
#include "plugin/fabric/soft/slow_step.h"

namespace twinpath::soft {
namespace {

std::mutex instance_lock;
std::atomic<Hca*> instance_of_process{nullptr};

std::uint32_t fnv(std::string_view s) {
  std::uint32_t h = 2166136261u;
  for (unsigned char c : s) h = (h ^ c) * 16777619u;
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

Hca::Hca(const Config& config) : config_(config), qps_(kQpsPerProcess, nullptr) {}

Status Hca::start(std::string& why) {
  if (!faults_.set(config_.soft_faults, why)) {
    why = "TWINPATH_SOFT_FAULTS: " + why;
    return Status::bad_argument;
  }
  // The job is told apart by user, name and mount of /tmp-independent identity: the boot id keeps
  // equal names on two hosts from looking alike.
  char boot[64] = "";
  if (FILE* f = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    if (std::fgets(boot, sizeof boot, f) == nullptr) boot[0] = 0;
    std::fclose(f);
  }
  rendezvous_prefix_ =
      "twinpath-" + std::to_string(getuid()) + "-" + config_.soft_job.substr(0, 48) + "-";
  job_hash_ = fnv(rendezvous_prefix_ + boot);
  probe_value_ = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  auto keys = KeyTable::create();
  if (!keys) {
    why = "no shared memory for the key table";
    return keys.status();
  }
  keys_ = std::move(keys).take();
  if (config_.soft_direct) allow_direct_copies();
  TP_TRY(claim_slot(why));
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) {
    why = std::string("epoll_create1: ") + std::strerror(errno);
    return Status::system;
  }
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.fd = listen_socket_.get();
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listen_socket_.get(), &e);
  // A forked child must not hold our sockets open: peers would take the dead for living.
  pthread_atfork(nullptr, nullptr, [] {
    if (Hca* h = existing()) {
      for (int fd : {h->listen_socket_.get(), h->epoll_.get()}) ::close(fd);
      for (auto& [fd, peer] : h->outgoing_) ::close(fd);
      for (auto& [fd, owner] : h->incoming_) ::close(fd);
    }
  });
  engine_ = std::thread([this] { engine_loop(); });
  pthread_setname_np(engine_.native_handle(), "twinpath-hca");
  engine_.detach();  // lives as long as the process, as an adapter does
  return Status::ok;
}

Hca::SlotAddress Hca::address_of(std::uint32_t slot) const {
  SlotAddress a;
  a.address.sun_family = AF_UNIX;
  const std::string name = rendezvous_prefix_ + std::to_string(slot);
  std::memcpy(a.address.sun_path + 1, name.data(), name.size());  // leading zero byte: abstract
  a.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return a;
}

Status Hca::claim_slot(std::string& why) {
  listen_socket_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listen_socket_) {
    why = std::string("socket(AF_UNIX): ") + std::strerror(errno);
    return Status::system;
  }
  // Start at a place that depends on the pid: neighbours seldom collide, and a number of a dead
  // process is not soon used again.
  const std::uint32_t start = (static_cast<std::uint32_t>(getpid()) * 2654435761u) % kSlots;
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    const std::uint32_t slot = (start + i) % kSlots;
    const SlotAddress a = address_of(slot);
    if (bind(listen_socket_.get(), reinterpret_cast<const sockaddr*>(&a.address), a.length) == 0) {
      if (listen(listen_socket_.get(), 1024) != 0) break;
      slot_ = slot;
      return Status::ok;
    }
    if (errno != EADDRINUSE) break;
  }
  why = errno == EADDRINUSE
            ? "1024 processes of this user and job already use the soft HCA on this "
              "host; give jobs their own TWINPATH_SOFT_JOB"
            : std::string("binding the rendezvous socket: ") + std::strerror(errno);
  return Status::system;
}

bool Hca::set_devices(const std::string& spec, std::string& why) {
  auto parsed = parse_device_specs(spec, why);
  if (!parsed) return false;
  std::lock_guard hold(lock_);
  devices_.clear();
  int index = 0;
  for (DeviceSpec& d : *parsed) {
    // Kept for the process's life: verbs users hold ibv_device pointers after the list is gone.
    SoftDevice* device = all_devices_.emplace_back(std::make_unique<SoftDevice>()).get();
    static_cast<ibv_device&>(*device) = ibv_device{};
    device->node_type = IBV_NODE_CA;
    device->transport_type = IBV_TRANSPORT_IB;
    std::snprintf(device->name, sizeof device->name, "%s", d.name.c_str());
    std::snprintf(device->dev_name, sizeof device->dev_name, "uverbs-%s", d.name.c_str());
    std::snprintf(device->ibdev_path, sizeof device->ibdev_path, "%s", d.pci_path.c_str());
    device->spec = std::move(d);
    device->hca = this;
    device->index = index++;
    devices_.push_back(device);
  }
  return true;
}

std::vector<SoftDevice*> Hca::devices() {
  std::lock_guard hold(lock_);
  return devices_;
}

ibv_gid Hca::gid(const SoftDevice& device, int port, int index) const {
  ibv_gid g{};
  const auto d = static_cast<std::uint8_t>(device.index), p = static_cast<std::uint8_t>(port);
  if (index == 0) {
    g.raw[0] = 0xfe;
    g.raw[1] = 0x80;
    for (unsigned i = 0; i < 4; ++i) g.raw[8 + i] = static_cast<std::uint8_t>(job_hash_ >> (8 * i));
    g.raw[13] = d;
    g.raw[15] = p;
  } else {
    g.raw[10] = g.raw[11] = 0xff;
    g.raw[12] = static_cast<std::uint8_t>(1 + job_hash_ % 126);  // a class A address, never 127
    g.raw[13] = static_cast<std::uint8_t>(job_hash_ >> 16);
    g.raw[14] = d;
    g.raw[15] = p;
  }
  return g;
}

std::uint32_t Hca::add_qp(SoftQp* qp) {
  std::lock_guard hold(lock_);
  // Numbers go round, so that a late packet for a destroyed QP does not meet its successor.
  for (std::uint32_t i = 0; i < kQpsPerProcess; ++i) {
    std::uint32_t index = next_qp_++ % kQpsPerProcess;
    std::uint32_t number = (slot_ << kSlotShift) | index;
    if (number < 16 || qps_[index] != nullptr) continue;  // 0 and 1 are the management QPs
    qps_[index] = qp;
    live_.push_back(qp);
    return number;
  }
  TP_WARN("soft HCA: all %u queue pairs of this process are in use", kQpsPerProcess);
  return 0;
}

void Hca::remove_qp(SoftQp* qp) {
  std::lock_guard hold(lock_);
  qps_[qp->qp_num % kQpsPerProcess] = nullptr;
  std::erase(live_, qp);
  std::erase_if(offers_, [&](const auto& o) { return o.first.first == qp->qp_num; });
}

void Hca::bind_link(SoftQp& qp, std::shared_ptr<Link> link) {
  std::lock_guard hold(qp.lock);
  if (qp.state != IBV_QPS_RTR && qp.state != IBV_QPS_RTS) return;
  LinkMemory& m = link->memory();
  const std::size_t me = qp.qp_num <= qp.attr.dest_qp_num ? 0 : 1;
  const std::size_t other = qp.qp_num == qp.attr.dest_qp_num ? 0 : 1 - me;
  qp.link = std::move(link);
  qp.mine = &m.end[me];
  qp.theirs = &m.end[other];
  qp.out_ring = m.ring[me];
  qp.in_ring = m.ring[other];
  qp.out_claim = &m.claim[me];
  qp.in_claim = &m.claim[other];
  qp.mine->pd.store(static_cast<SoftPd*>(qp.pd)->number, std::memory_order_relaxed);
  qp.mine->access.store(qp.attr.qp_access_flags, std::memory_order_relaxed);
  // Pairs with the acquire in start(): who sees `ready` sees pd and access.
  qp.mine->state.store(static_cast<std::uint32_t>(EndState::ready), std::memory_order_release);
}

Status Hca::attach(SoftQp& qp) {
  const std::uint32_t own = qp.qp_num, dest = qp.attr.dest_qp_num;
  const std::uint32_t slot = dest >> kSlotShift;
  std::shared_ptr<Link> link;
  if (slot == slot_) {
    // Same process: the first of the two makes the link, the second finds it.
    std::lock_guard hold(lock_);
    auto offered = offers_.find({own, dest});
    if (offered != offers_.end()) {
      link = std::move(offered->second);
      offers_.erase(offered);
    } else {
      auto made = Link::create_local();
      if (!made) return made.status();
      link = std::move(made).take();
      if (own != dest) offers_[{dest, own}] = link;
    }
  } else {
    auto peer = peer_of(slot);
    {
      std::lock_guard hold(qp.lock);
      qp.unreachable = !peer;  // the timers turn this into retry-exceeded, as with a dead host
      if (peer) qp.peer = *peer;
    }
    if (!peer) return Status::ok;
    if (own < dest) {
      UniqueFd fd;
      auto made = Link::create_shared(fd);
      if (!made) return made.status();
      link = std::move(made).take();
      Message m{};
      m.kind = MessageKind::offer;
      m.slot = slot_;
      m.pid = getpid();
      m.a = own;
      m.b = dest;
      // Without lock_: the send may wait for the peer's engine, and the peer's for ours.
      if (!send_message((*peer)->socket.get(), m, fd.get())) {
        std::lock_guard hold(qp.lock);
        qp.unreachable = true;
      }
    } else {
      std::lock_guard hold(lock_);
      auto offered = offers_.find({own, dest});
      if (offered == offers_.end()) return Status::ok;  // it will come: on_message binds it
      link = std::move(offered->second);
      offers_.erase(offered);
    }
  }
  bind_link(qp, std::move(link));
  return Status::ok;
}

std::uint64_t Hca::acquire_allocation(const PointerInfo& info) {
  std::lock_guard hold(allocations_lock_);
  for (auto& [id, a] : allocations_) {
    if (a.info.alloc_base == info.alloc_base && a.info.alloc_bytes == info.alloc_bytes) {
      ++a.users;
      return id;
    }
  }
  std::uint64_t id = next_allocation_++;
  allocations_[id] = {info, 1, nullptr, false};
  return id;
}

void Hca::release_allocation(std::uint64_t alloc_id) {
  std::shared_ptr<ImportedAllocation> drop;
  {
    std::lock_guard hold(allocations_lock_);
    auto it = allocations_.find(alloc_id);
    if (it == allocations_.end() || --it->second.users != 0) return;
    drop = std::move(it->second.mapping);
    allocations_.erase(it);
  }
  Message m{};
  m.kind = MessageKind::gone;
  m.slot = slot_;
  m.a = alloc_id;
  std::vector<std::shared_ptr<Peer>> tell;
  {
    std::lock_guard hold(lock_);
    for (auto& [slot, peer] : peers_) tell.push_back(peer);
  }
  for (auto& peer : tell) {
    if (!peer->dead.load()) (void)send_message(peer->socket.get(), m);
  }
}

std::shared_ptr<ImportedAllocation> Hca::own_allocation(std::uint64_t alloc_id, bool& failed) {
  std::lock_guard hold(allocations_lock_);
  auto it = allocations_.find(alloc_id);
  if (it == allocations_.end() || it->second.failed) {
    failed = true;
    return nullptr;
  }
  OwnAllocation& a = it->second;
  if (!a.mapping) {
    SlowStep slow("mapping GPU memory for this process");
    auto made = import_local(a.info);
    if (!made) {
      a.failed = failed = true;
      return nullptr;
    }
    a.mapping = std::move(made).take();
  }
  return a.mapping;
}

}  // namespace twinpath::soft
