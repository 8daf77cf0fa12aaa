// See gin_transport.h.
#include "gda/gin_transport.h"

#include <algorithm>

#include "gda/adapter/adapter_context.h"
#include "gda/served/served_context.h"
#include "gda/team/meeting.h"
#include "gda/team/modes.h"
#include "gda/team/team_comm.h"
#include "gda/team/window.h"
#include "plugin/rdma/devices.h"
#include "topology/decide/overrides.h"

namespace twinpath::gda {
namespace {

class Comm final : public TeamComm<GinComm, Window, GinCore> {
 public:
  using TeamComm::TeamComm;
  Result<std::unique_ptr<GinContext>> create_context(const ContextSettings& settings) override {
    if (team()->adapter != nullptr) return made(AdapterContext::make(team(), settings));
    return made(gda::ServedContext::make(team(), settings));
  }

 private:
  template <class Made>
  static Result<std::unique_ptr<GinContext>> made(Result<std::unique_ptr<Made>> context) {
    if (!context) return context.status();
    return std::unique_ptr<GinContext>(std::move(context).take());
  }
};

// Not where the adapter serves the queues itself: what it does is not seen here.  What the engine
// copies needs no counted signals, but the order of its fabric.
SecondUse use_of_second(const GinCore& core) {
  const auto all = [&core](const auto& are) {
    return std::all_of(core.plans.begin(), core.plans.end(), are);
  };
  const auto is_counted = [](const PeerPlan& plan) { return plan.counted; };
  const auto is_copied = [](const PeerPlan& plan) {
    return !plan.counted && plan.mode == ModeChoice::gda_cpu;
  };
  if (core.adapter != nullptr) return SecondUse::none;
  if (all(is_counted)) return SecondUse::moves;
  return core.verbs().ordered && all(is_copied) ? SecondUse::either : SecondUse::none;
}

// A CPU posts all queues of this rank: those that a fabric's copy engine or the adapter serves stay
// where they are.
bool served_by_threads(const GinCore& core) {
  for (int rank = 0; rank < core.ranks(); ++rank) {
    const ModeChoice wish = end_settings(core.config(), rank).wish;
    const bool by_default =  // on adapters: they serve queues themselves only where it is asked for
        wish == ModeChoice::automatic && core.config().fabric != FabricChoice::soft;
    if (wish != ModeChoice::proxy && wish != ModeChoice::stage && !by_default) return false;
  }
  return true;
}

class Transport final : public GinTransport {
 public:
  explicit Transport(std::shared_ptr<Devices> devices)
      : devices_(std::move(devices)), meetings_(devices_) {}

  std::size_t device_count() const override { return devices_->count(); }
  Result<DeviceProps> device(int index) const override { return devices_->properties(index); }

  Result<std::unique_ptr<OneSidedListener>> listen(
      int device, std::span<std::uint8_t, kHandleBytes> handle) override {
    return meetings_.listen(device, handle);
  }

  Result<std::unique_ptr<GinComm>> connect(
      std::span<const std::array<std::uint8_t, kHandleBytes>> handles, int rank,
      OneSidedListener& listener, const CommSettings& settings) override {
    auto core = std::make_shared<GinCore>(static_cast<int>(handles.size()));
    TP_TRY(meetings_.meet(core, handles, rank, listener, settings));
    if (served_by_threads(*core)) count_to_move(*core);
    TP_TRY(agree_on_modes(*core, devices_->index_of(core->rail.port)));
    TP_TRY(agree_on_second_port(*core, use_of_second(*core)));
    core->engine = Engine::of(core->gpu, devices_->config().gin_engine,
                              devices_->config().helper_cpus, devices_->counters().get());
    return std::unique_ptr<GinComm>(std::make_unique<Comm>(std::move(core)));
  }

 private:
  const std::shared_ptr<Devices> devices_;
  Meetings meetings_;
};

}  // namespace

Result<std::unique_ptr<GinTransport>> make_gin_transport(std::shared_ptr<Devices> devices) {
  return std::unique_ptr<GinTransport>(std::make_unique<Transport>(std::move(devices)));
}

}  // namespace twinpath::gda
