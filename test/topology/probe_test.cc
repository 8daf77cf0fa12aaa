// Probes: each pair is tried once, errors become reasons, registrations are given back.
#include "topology/probe/probe.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "plugin/gpu/driver.h"
#include "test/support/catch.h"

namespace twinpath {
namespace {

ProbeResults results(const Probe& dmabuf, const Probe& peermem) {
  ProbeResults r;
  r.dmabuf = dmabuf;
  r.peermem = peermem;
  return r;
}

ibv_pd* pd_number(std::uintptr_t n) { return reinterpret_cast<ibv_pd*>(n); }

// Made-up verbs: what the calls answer, and how often they were made.
struct Played {
  int register_error = 0;
  int registered = 0, released = 0;
  ibv_atomic_cap atomics = IBV_ATOMIC_HCA;
  int query_error = 0;
  std::uint64_t address = 0;
  int fd = -2;
};
Played* played = nullptr;  // the table's functions have no room for state
ibv_mr some_mr;

ibv_mr* answer_registration() {
  if (played->register_error != 0) {
    errno = played->register_error;
    return nullptr;
  }
  ++played->registered;
  return &some_mr;
}

Verbs played_verbs() {
  Verbs v;
  v.reg_dmabuf_mr = [](ibv_pd*, std::uint64_t, std::size_t, std::uint64_t iova, int fd,
                       int) -> ibv_mr* {
    played->address = iova;
    played->fd = fd;
    return answer_registration();
  };
  v.reg_mr_iova2 = [](ibv_pd*, void*, std::size_t, std::uint64_t iova, unsigned) -> ibv_mr* {
    played->address = iova;
    return answer_registration();
  };
  v.dereg_mr = [](ibv_mr* mr) {
    CHECK(mr == &some_mr);
    return ++played->released, 0;
  };
  v.query_device = [](ibv_context*, ibv_device_attr* attr) {
    attr->atomic_cap = played->atomics;
    return played->query_error;
  };
  return v;
}

Probe some_memory(int, bool dmabuf, const UseGpuMemory& use) {
  return use(0x7000, 4096, dmabuf ? 17 : -1);
}
Probe no_memory(int, bool, const UseGpuMemory&) {
  return {Answer::untried, 0, Reason::none, "no CUDA"};
}

}  // namespace

TEST_CASE("each pair is tried once, whatever the answer") {
  int calls = 0;
  ProbeSteps steps;
  steps.dmabuf = [&](int gpu, ibv_pd*) -> Probe {
    ++calls;
    if (gpu == 1) return {Answer::no, 524, Reason::gdr_enotsupp, ""};
    return {Answer::yes, 0, Reason::none, ""};
  };
  ProbeCache cache(steps);
  CHECK(cache.get(0, pd_number(1)).gdr());
  CHECK_FALSE(cache.get(1, pd_number(1)).gdr());
  CHECK(cache.get(0, pd_number(2)).gdr());
  for (int i = 0; i < 5; ++i) {
    CHECK(cache.get(0, pd_number(1)).dmabuf.answer == Answer::yes);
    CHECK(cache.get(1, pd_number(1)).dmabuf.error == 524);
  }
  CHECK(calls == 3);
  CHECK(cache.get(0, pd_number(1)).uar.answer == Answer::untried);  // no step: never tried
}

TEST_CASE("what could not be tried is tried again later") {
  int calls = 0;
  ProbeSteps steps;
  steps.peermem = [&](int, ibv_pd*) -> Probe {
    return ++calls < 3 ? Probe{} : Probe{Answer::yes, 0, Reason::none, ""};
  };
  ProbeCache cache(steps);
  CHECK(cache.get(0, nullptr).gdr_untried());
  CHECK(cache.get(0, nullptr).gdr_untried());
  CHECK(cache.get(0, nullptr).gdr());
  CHECK(cache.get(0, nullptr).gdr());
  CHECK(calls == 3);
}

TEST_CASE("threads that ask for one pair at once share one try") {
  std::atomic<int> calls{0};
  ProbeSteps steps;
  steps.dmabuf = [&](int, ibv_pd*) -> Probe {
    ++calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return {Answer::yes, 0, Reason::none, ""};
  };
  ProbeCache cache(steps);
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] { good += cache.get(0, nullptr).gdr() ? 1 : 0; });
  for (std::thread& t : threads) t.join();
  CHECK(good == 8);
  CHECK(calls == 1);
}

TEST_CASE("errors of a registration become reasons") {
  CHECK(reason_of_gdr_error(524) == Reason::gdr_enotsupp);
  CHECK(reason_of_gdr_error(EOPNOTSUPP) == Reason::gdr_none);
  CHECK(reason_of_gdr_error(EFAULT) == Reason::gdr_none);  // a CUDA pointer without peermem
  CHECK(reason_of_gdr_error(EPERM) == Reason::gdr_perm);
  CHECK(reason_of_gdr_error(EACCES) == Reason::gdr_perm);
  CHECK(reason_of_gdr_error(ENOMEM) == Reason::gdr_bar1);
  CHECK(reason_of_gdr_error(EINVAL) == Reason::gdr_failed);
  CHECK(reason_of_gdr_error(0) == Reason::gdr_failed);
  CHECK(reason_of_uar_error(800, false) == Reason::uar_perm);
  CHECK(reason_of_uar_error(800, true) == Reason::uar_perm);
  CHECK(reason_of_uar_error(1, true) == Reason::uar_vf);
  CHECK(reason_of_uar_error(1, false) == Reason::uar_failed);
}

TEST_CASE("of two refused ways the one that says more is told") {
  const Probe absent{Answer::no, EFAULT, Reason::gdr_none, "absent"};
  const Probe refused{Answer::no, 524, Reason::gdr_enotsupp, "refused"};
  const Probe works{Answer::yes, 0, Reason::none, ""};
  ProbeResults r;
  CHECK(r.gdr_untried());
  CHECK(r.gdr_refusal().answer == Answer::untried);
  r = results(absent, refused);
  CHECK(r.gdr_refusal().note == "refused");
  r = results(refused, absent);
  CHECK(r.gdr_refusal().note == "refused");
  r = results(absent, Probe{});
  CHECK(r.gdr_refusal().note == "absent");
  r = results(Probe{}, absent);
  CHECK(r.gdr_refusal().note == "absent");
  r = results(refused, works);
  CHECK(r.gdr());
  CHECK(r.gdr_refusal().reason == Reason::none);
}

TEST_CASE("a registration that works is given back") {
  Played p;
  played = &p;
  const Verbs verbs = played_verbs();
  const ProbeSteps steps = registration_steps(verbs, some_memory);
  CHECK(steps.dmabuf(0, nullptr).answer == Answer::yes);
  CHECK(p.fd == 17);
  CHECK(p.address == 0x7000);
  CHECK(steps.peermem(0, nullptr).answer == Answer::yes);
  CHECK(p.registered == 2);
  CHECK(p.released == 2);
  CHECK_FALSE(steps.uar);
}

TEST_CASE("a registration that fails says which call and which errno") {
  Played p;
  p.register_error = 524;
  played = &p;
  Verbs verbs = played_verbs();
  ProbeSteps steps = registration_steps(verbs, some_memory);
  const Probe d = steps.dmabuf(0, nullptr);
  CHECK(d.answer == Answer::no);
  CHECK(d.reason == Reason::gdr_enotsupp);
  CHECK(d.note == "ibv_reg_dmabuf_mr: not supported by the kernel (errno 524)");
  p.register_error = EFAULT;
  const Probe m = steps.peermem(0, nullptr);
  CHECK(m.reason == Reason::gdr_none);
  CHECK(m.note == "ibv_reg_mr: Bad address (errno 14)");
  CHECK(p.released == 0);
  verbs.reg_dmabuf_mr = nullptr;
  CHECK(steps.dmabuf(0, nullptr).note == "these verbs have no ibv_reg_dmabuf_mr");
  CHECK(steps.data_direct(0, nullptr).note == "no mlx5dv_reg_dmabuf_mr");
  verbs.reg_data_direct = [](ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int,
                             int) -> ibv_mr* {
    errno = 524;
    return nullptr;
  };
  CHECK(steps.data_direct(0, nullptr).note ==
        "mlx5dv_reg_dmabuf_mr: not supported by the kernel (errno 524)");
  // It is tried where it is asked for only.
  ProbeCache cache(steps);
  ibv_pd pd{};
  CHECK(cache.get(0, &pd).data_direct.answer == Answer::untried);
  CHECK(cache.get(0, &pd, true).data_direct.answer == Answer::no);
}

TEST_CASE("without GPU memory nothing is registered and the answer is not tried") {
  Played p;
  played = &p;
  const Verbs verbs = played_verbs();
  ProbeCache cache(registration_steps(verbs, no_memory));
  ibv_pd pd{};
  const ProbeResults r = cache.get(0, &pd);
  CHECK(r.gdr_untried());
  CHECK(r.dmabuf.note == "no CUDA");
  CHECK(r.uar.answer == Answer::untried);
  CHECK(p.registered == 0);
}

TEST_CASE("atomics are what the adapter says of itself") {
  Played p;
  played = &p;
  const Verbs verbs = played_verbs();
  const ProbeSteps steps = registration_steps(verbs, no_memory);
  ibv_pd pd{};
  CHECK(steps.atomics(0, &pd).answer == Answer::yes);
  p.atomics = IBV_ATOMIC_NONE;
  CHECK(steps.atomics(0, &pd).reason == Reason::atomic_emul);
  p.query_error = EIO;
  CHECK(steps.atomics(0, &pd).error == EIO);
}

namespace {

// A driver that maps pages, or refuses with a number; and an adapter's pages.
struct PlayedDoorbells {
  int refusal = 0, mapped = 0;
  bool dedicated = true, shared = true;
  std::string given;  // pages, by kind, and back
};
PlayedDoorbells doorbells;
alignas(4096) std::uint8_t doorbell_page[4096];

gpu::cuda::Driver doorbell_driver() {
  gpu::cuda::Driver d;
  d.primary_state = [](gpu::cuda::Device, unsigned*, int* active) { return *active = 1, 0; };
  d.primary_retain = [](gpu::cuda::Context*, gpu::cuda::Device) { return 0; };
  d.primary_release = [](gpu::cuda::Device) { return 0; };
  d.ctx_push = [](gpu::cuda::Context) { return 0; };
  d.ctx_pop = [](gpu::cuda::Context*) { return 0; };
  d.exchange_capture_mode = [](int*) { return 0; };
  d.get_error_name = [](gpu::cuda::Result, const char** name) { return *name = "REFUSED", 0; };
  d.host_register = [](void*, std::size_t, unsigned) {
    doorbells.mapped += doorbells.refusal == 0 ? 1 : 0;
    return doorbells.refusal;
  };
  d.host_unregister = [](void*) { return --doorbells.mapped, 0; };
  d.host_device_pointer = [](gpu::cuda::Address* seen, void*, unsigned) { return *seen = 8, 0; };
  return d;
}

Mlx5 doorbell_adapter() {
  Mlx5 mlx5;
  mlx5.is_supported = [](ibv_device* device) { return device->name[0] == 'm'; };
  mlx5.devx_alloc_uar = [](ibv_context*, std::uint32_t type) -> mlx5dv_devx_uar* {
    const bool own = type == 1u << 31;
    doorbells.given += own ? 'D' : 'N';
    if (!(own ? doorbells.dedicated : doorbells.shared)) {
      errno = EOPNOTSUPP;
      return nullptr;
    }
    static mlx5dv_devx_uar page{};
    page.reg_addr = doorbell_page + 0x800;
    return &page;
  };
  mlx5.devx_free_uar = [](mlx5dv_devx_uar*) { doorbells.given += '-'; };
  return mlx5;
}

}  // namespace

TEST_CASE("a doorbell is mapped and let go, and what refuses it has a reason") {
  const auto driver = doorbell_driver();
  const Mlx5 mlx5 = doorbell_adapter();
  ibv_device device{};
  ibv_context context{};
  ibv_pd pd{};
  context.device = &device;
  pd.context = &context;
  struct Case {
    const char* name;
    int refusal;
    bool dedicated, shared, loaded;
    Answer answer;
    Reason reason;
    const char* given;
  };
  const Case cases[] = {
      {"mlx5_0", 0, true, true, true, Answer::yes, Reason::none, "D-"},
      {"mlx5_0", 0, false, true, true, Answer::yes, Reason::none, "DN-"},
      {"mlx5_0", 800, true, true, true, Answer::no, Reason::uar_perm, "D-"},
      {"mlx5_0", 1, true, true, true, Answer::no, Reason::uar_failed, "D-"},
      {"mlx5_vf", 1, true, true, true, Answer::no, Reason::uar_vf, "D-"},
      {"mlx5_0", 0, false, false, true, Answer::no, Reason::devx_none, "DN"},
      {"mlx5_0", 0, true, true, false, Answer::untried, Reason::none, ""},
      {"bnxt_re0", 0, true, true, true, Answer::untried, Reason::none, ""},
  };
  for (const Case& one : cases) {
    CAPTURE(one.name, one.refusal, one.given);
    doorbells = {one.refusal, 0, one.dedicated, one.shared, ""};
    std::strcpy(device.name, one.name);
    gpu::cuda::set_driver_for_test(one.loaded ? &driver : nullptr);
    const auto step =
        doorbell_step(mlx5, [](const ibv_device* d) { return std::string(d->name) == "mlx5_vf"; });
    const Probe p = step(0, &pd);
    gpu::cuda::set_driver_for_test(nullptr);
    CHECK(p.answer == one.answer);
    CHECK(p.reason == one.reason);
    CHECK(p.error == (one.answer == Answer::no && one.refusal != 0 ? one.refusal
                      : one.answer == Answer::no                   ? EOPNOTSUPP
                                                                   : 0));
    CHECK(doorbells.given == one.given);
    CHECK(doorbells.mapped == 0);
  }
}

TEST_CASE("the CUDA driver is not loaded for a probe") {
  // This program does not use CUDA, so there is nothing to try with.
  CHECK(cuda_memory()(0, true, [](std::uint64_t, std::size_t, int) { return Probe{}; }).answer ==
        Answer::untried);
  CHECK_FALSE(cuda_ordinal("0000:17:00.0"));
}

TEST_CASE("answers have names for the report") {
  CHECK(name_of(Answer::untried) == "not tried");
  CHECK(name_of(Answer::no) == "no");
  CHECK(name_of(Answer::yes) == "yes");
}

}  // namespace twinpath
