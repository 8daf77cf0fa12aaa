#include "gda/adapter/mlx5/adapter.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "plugin/base/log.h"
#include "plugin/base/page_size.h"

namespace twinpath::gda::mlx5 {
namespace {

struct StatusText {
  unsigned status;
  const char* text;
  const char* remedy;
};
constexpr const char* kReport = "; report it with the adapter's firmware version (ibv_devinfo)";
constexpr StatusText kStatusTexts[] = {
    {0x01, "internal error", "; see dmesg, and update the adapter's firmware"},
    {0x02, "no such command", "; update the adapter's firmware"},
    {0x03, "bad parameter", kReport},
    {0x04, "bad system state", "; see dmesg of this host"},
    {0x05, "bad resource", kReport},
    {0x06, "resource busy", ""},
    {0x08, "limit exceeded", "; use fewer contexts or a smaller TWINPATH_GIN_DEPTH"},
    {0x09, "bad state of a resource", kReport},
    {0x0a, "bad index", "; check NCCL_IB_GID_INDEX and NCCL_IB_PKEY"},
    {0x0f, "no resources", "; use fewer contexts or a smaller TWINPATH_GIN_DEPTH"},
    {0x10, "bad state of the queue pair", kReport},
    {0x50, "bad length of the command", "; update the adapter's firmware"},
    {0x51, "bad length of the answer", "; update the adapter's firmware"},
};

const StatusText* find(unsigned status) {
  for (const StatusText& t : kStatusTexts)
    if (t.status == status) return &t;
  return nullptr;
}

constexpr const char* kDevxNeeds =
    "; commands (DevX) need firmware with UCTX enabled, a kernel with mlx5_ib's DevX, and write "
    "access to /dev/infiniband/uverbs*";

// Of a command without an answer: the driver has kept it from the adapter, or is one of those that
// drop the answer to what the adapter refuses.  It writes nothing to the kernel's log then.
const char* errno_remedy(int error) {
  switch (error) {
    case EOPNOTSUPP:
    case EPROTONOSUPPORT:
    case EPERM:
    case EACCES:
      return kDevxNeeds;
    case ENOMEM:
    case EAGAIN:
      return "; use fewer contexts or a smaller TWINPATH_GIN_DEPTH; the kernel's trace point "
             "mlx5:mlx5_cmd shows the command with its status and syndrome";
    default:
      return "; the kernel's trace point mlx5:mlx5_cmd shows the command with its status and "
             "syndrome (as root: echo 1 > /sys/kernel/tracing/events/mlx5/mlx5_cmd/enable, try "
             "again, read /sys/kernel/tracing/trace)";
  }
}

}  // namespace

const char* status_text(unsigned status) {
  const StatusText* const t = find(status);
  return t == nullptr ? "of no name" : t->text;
}
const char* status_remedy(unsigned status) {
  const StatusText* const t = find(status);
  return t == nullptr ? kReport : t->remedy;
}

Status Adapter::refused(int error, std::span<const std::uint8_t> answer,
                        const std::string& what) const {
  const unsigned status = read_bits(answer, kStatus);
  if (status == 0) {
    TP_WARN("%s: %s: the driver refused: %s (errno %d, without an answer)%s", name(), what.c_str(),
            std::strerror(error), error, errno_remedy(error));
    return error == ENOMEM || error == EAGAIN ? Status::no_memory : Status::system;
  }
  TP_WARN("%s: %s: the adapter refused: %s (status 0x%x, syndrome 0x%x)%s", name(), what.c_str(),
          status_text(status), status, read_bits(answer, kSyndrome), status_remedy(status));
  return status == 0x08 || status == 0x0f ? Status::no_memory : Status::system;
}

Result<std::unique_ptr<Adapter>> Adapter::make(const Verbs& verbs, const Mlx5& mlx5,
                                               const Rail& rail) {
  std::unique_ptr<Adapter> adapter(new Adapter(verbs, mlx5, rail));
  TP_TRY(adapter->look());
  return adapter;
}

Status Adapter::look() {
  if (!mlx5_.is_supported(context()->device)) {
    TP_WARN("%s is no mlx5 adapter: its queues are not made by commands; use TWINPATH_MODE=proxy",
            name());
    return Status::unsupported;
  }
  if (verbs_.create_ah == nullptr || verbs_.destroy_ah == nullptr) {
    TP_WARN("libibverbs.so.1 has no ibv_create_ah@IBVERBS_1.1; install rdma-core 22 or newer");
    return Status::unsupported;
  }
  TP_TRY(ask(CapabilityKind::general, "its capabilities"));
  TP_TRY(try_memory());
  if (capabilities_.atomics) TP_TRY(ask(CapabilityKind::atomic, "its atomics"));
  if (capabilities_.roce) TP_TRY(ask(CapabilityKind::roce, "its RoCE"));
  if (capabilities_.second_page)
    TP_TRY(ask(CapabilityKind::general_2, "its capabilities, second page"));
  mlx5dv_pd view{};
  mlx5dv_obj obj{};
  obj.pd = {pd(), &view};
  if (const int error = mlx5_.init_obj(&obj, MLX5DV_OBJ_PD); error != 0)
    return refused(error, {}, "the number of its protection domain");
  pd_number_ = view.pdn;
  if (const int error = mlx5_.devx_query_eqn(context(), 0, &event_queue_); error != 0)
    return refused(error, {}, "the number of its first event queue");
  return Status::ok;
}

// A context that was opened without DevX answers questions all the same, and gives doorbell pages;
// memory is the first that it refuses, with the errno of a wrong argument.  One page, which no
// limit forbids, tells the two apart.
Status Adapter::try_memory() {
  const std::size_t bytes = page_size();
  const std::unique_ptr<void, void (*)(void*)> page(std::aligned_alloc(bytes, bytes), std::free);
  if (page == nullptr) return Status::no_memory;
  errno = 0;
  const Handle<mlx5dv_devx_umem> umem(
      mlx5_.devx_umem_reg(context(), page.get(), bytes, IBV_ACCESS_LOCAL_WRITE), Destroyer{this});
  if (umem != nullptr) return Status::ok;
  const int error = errno;
  if (error == ENOMEM) {
    TP_WARN("%s cannot register one page for queues: %s; raise the memlock limit (ulimit -l)",
            name(), std::strerror(error));
    return Status::no_memory;
  }
  TP_WARN(
      "%s answers questions but makes no queues: its context was opened without DevX (%s, errno "
      "%d, for one page of memory)%s; TWINPATH_MODE=proxy goes without",
      name(), std::strerror(error), error, kDevxNeeds);
  return Status::unsupported;
}

Status Adapter::ask(CapabilityKind kind, const char* what) {
  const Command command = query_capabilities(static_cast<unsigned>(kind));
  std::vector<std::uint8_t> answer(cap::kAnswerBytes);
  const int error = mlx5_.devx_general_cmd(context(), command.bytes().data(),
                                           command.bytes().size(), answer.data(), answer.size());
  if (error != 0) return refused(error, answer, std::string("asking for ") + what);
  capabilities_.read(kind, answer);
  return Status::ok;
}

Result<Adapter::Made> Adapter::create(const Command& command, const std::string& what) const {
  std::array<std::uint8_t, kShortBytes> answer{};
  errno = 0;
  mlx5dv_devx_obj* const object = mlx5_.devx_obj_create(
      context(), command.bytes().data(), command.bytes().size(), answer.data(), answer.size());
  if (object == nullptr) return refused(errno, answer, "making the " + what);
  return Made{Handle<mlx5dv_devx_obj>(object, Destroyer{this}), read_bits(answer, kNumber)};
}

Status Adapter::modify(mlx5dv_devx_obj* object, const Command& command,
                       const std::string& what) const {
  std::array<std::uint8_t, kShortBytes> answer{};
  const int error = mlx5_.devx_obj_modify(object, command.bytes().data(), command.bytes().size(),
                                          answer.data(), answer.size());
  return error == 0 ? Status::ok : refused(error, answer, what);
}

Result<std::vector<std::uint8_t>> Adapter::query(mlx5dv_devx_obj* object, const Command& command,
                                                 std::size_t bytes, const std::string& what) const {
  std::vector<std::uint8_t> answer(bytes);
  const int error = mlx5_.devx_obj_query(object, command.bytes().data(), command.bytes().size(),
                                         answer.data(), answer.size());
  if (error != 0) return refused(error, answer, what);
  return answer;
}

void Destroyer::operator()(mlx5dv_devx_obj* object) const {
  if (const int error = adapter->mlx5().devx_obj_destroy(object); error != 0)
    TP_WARN("%s cannot destroy a queue: %s (errno %d); see dmesg", adapter->name(),
            std::strerror(error), error);
}
void Destroyer::operator()(mlx5dv_devx_umem* umem) const {
  if (const int error = adapter->mlx5().devx_umem_dereg(umem); error != 0)
    TP_WARN("%s cannot let go of the memory of its queues: %s (errno %d); see dmesg",
            adapter->name(), std::strerror(error), error);
}
void Destroyer::operator()(mlx5dv_devx_uar* page) const { adapter->mlx5().devx_free_uar(page); }

}  // namespace twinpath::gda::mlx5
