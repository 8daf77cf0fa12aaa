#include "tools/softhca/pci/adapter.h"

#include <utility>

namespace twinpath::softhca::pci {
namespace {

std::span<std::uint8_t> bytes_of(const SharedMemory& memory) {
  return {memory.as<std::uint8_t>(), Adapter::kBarBytes};
}

}  // namespace

Result<std::unique_ptr<Adapter>> Adapter::create(unsigned number, const std::string& socket,
                                                 const GuestMemory& memory, Trace& trace) {
  auto bar = SharedMemory::create("twinpath-pci-bar", kBarBytes, Writers::both);
  if (!bar) return bar.status();
  auto ivshmem = Ivshmem::listen(socket, bar->fd(), kVectors);
  if (!ivshmem) return ivshmem.status();
  return std::unique_ptr<Adapter>(
      new Adapter(number, std::move(bar).take(), std::move(ivshmem).take(), memory, trace));
}

Adapter::Adapter(unsigned number, SharedMemory bar, Ivshmem ivshmem, const GuestMemory& memory,
                 Trace& trace)
    : number_(number),
      memory_(memory),
      bar_(std::move(bar)),
      ivshmem_(std::move(ivshmem)),
      trace_(trace),
      commands_(bytes_of(bar_), memory),
      events_(memory, kVectors, [this](unsigned vector) { ivshmem_.interrupt(vector); }) {}

void Adapter::start(const Verbs& verbs, ibv_context* context, Subnet& subnet) {
  data_ = std::make_unique<DataPath>(verbs, context, memory_, bytes_of(bar_), subnet);
  function_ =
      std::make_unique<Function>(number_, kBarBytes / kPageBytes, memory_, events_, data_.get());
}

bool Adapter::turn(std::int64_t now) {
  commands_.tick(now);
  while (const auto told = data_->next_event()) {
    if (told->event) events_.tell_of_queue(*told->event, told->number);
  }
  return commands_.poll(now, function_->enabled(),
                        [this](unsigned number, const Slot& slot) { run(number, slot); });
}

void Adapter::run(unsigned number, const Slot& slot) {
  Message message;
  Delivery delivery = slot.read(message);
  // The event queue of commands, once there is one: the command that makes it is still waited for
  // by looking at the slot.
  const bool tells = events_.takes(Event::command);
  if (delivery == Delivery::ok) {
    std::vector<std::uint8_t> answer(message.answer_bytes);
    const Outcome outcome = function_->execute(message.in, answer);
    trace_.command(number_, message.in, answer, outcome);
    delivery = slot.write(answer);
  }
  slot.hand_back(delivery);
  std::array<std::uint8_t, 4> vector{};
  mlx5::set(vector, {0, 32}, std::uint64_t{1} << number);
  if (tells) (void)events_.tell(Event::command, 0, vector);
}

void Adapter::fail(std::int64_t now) {
  commands_.fail(now);
  function_->fail();
  trace_.event(number_, "failed");
}

void Adapter::lose(soft::PortLoss what) {
  data_->lose(what);
  trace_.event(number_, what == soft::PortLoss::none ? "port loses nothing" : "port loses packets");
}

void Adapter::slow_down(std::uint32_t mbps) {
  data_->slow_down(mbps);
  trace_.event(number_, mbps == 0 ? "port at full speed" : "port slow");
}

void Adapter::change_lid() {
  function_->change_lid();
  trace_.event(number_, "another LID");
}

void Adapter::set_link(bool up) {
  function_->set_link(up);
  trace_.event(number_, up ? "port up" : "port down");
}

}  // namespace twinpath::softhca::pci
