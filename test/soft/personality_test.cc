// Adapters like others' (like=): each rule of the table, as a program meets it.  How they take work
// test/fabric/conformance tries.
#include <cerrno>
#include <fstream>
#include <sstream>

#include "plugin/base/owned.h"
#include "plugin/fabric/soft/extended.h"
#include "plugin/fabric/soft/like.h"
#include "plugin/fabric/soft/personality.h"
#include "plugin/fabric/verbs.h"
#include "test/support/catch.h"

using namespace twinpath;
using soft::Gids;
using soft::InlineLimit;
using soft::Personality;

namespace {

constexpr int kUntouched = 7777;  // no errno value

// One adapter of a kind, with a queue pair that is joined to another of its own.
struct Adapter {
  const Personality& like;
  Verbs verbs;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  std::vector<std::uint64_t> memory = std::vector<std::uint64_t>(512);

  explicit Adapter(const Personality& p) : like(p) {
    Config config;
    config.soft_hcas = "soft3,like=" + std::string(p.name);
    std::string why;
    REQUIRE(load_soft_hca(verbs, config, why));
    ibv_device** list = verbs.get_device_list(nullptr);
    CHECK(list[0]->name == std::string(p.identity.device) + "3");
    context = verbs.open_device(list[0]);
    verbs.free_device_list(list);
    REQUIRE(context != nullptr);
    pd = verbs.alloc_pd(context);
    cq = verbs.create_cq(context, 64, nullptr, nullptr, 0);
    REQUIRE(cq != nullptr);
  }
  ~Adapter() {
    verbs.destroy_cq(cq);
    verbs.dealloc_pd(pd);
    verbs.close_device(context);
  }
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  Owned<ibv_qp> make_qp(ibv_qp_cap& cap) const {
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = cq;
    a.qp_type = IBV_QPT_RC;
    a.cap = cap;
    errno = kUntouched;
    auto qp = own(verbs.create_qp(pd, &a), verbs.destroy_qp);
    cap = a.cap;
    return qp;
  }
  // Null, with the device's errno.
  void refused(ibv_qp_cap cap) const {
    CHECK(make_qp(cap) == nullptr);
    CHECK(errno == (like.queues.refusal != 0 ? like.queues.refusal : kUntouched));
  }
  Owned<ibv_mr> register_memory(unsigned access) {
    errno = kUntouched;
    return own(verbs.reg_mr_iova2(pd, memory.data(), memory.size() * sizeof memory[0],
                                  reinterpret_cast<std::uint64_t>(memory.data()), access),
               verbs.dereg_mr);
  }
  ibv_port_attr port() const {
    ibv_port_attr a{};
    REQUIRE(verbs.query_port(context, 1, &a) == 0);
    return a;
  }
  ibv_device_attr device() const {
    ibv_device_attr a{};
    REQUIRE(verbs.query_device(context, &a) == 0);
    return a;
  }
  int gids() const {
    int used = 0;
    while (soft::gid_kind(like, used).used) ++used;
    return used;
  }
};

const Personality& any() {
  const std::span<const Personality> all = soft::personalities();
  const std::size_t i = GENERATE_COPY(range(std::size_t{0}, all.size()));
  return all[i];
}

}  // namespace

TEST_CASE("queues up to an adapter's limits are made, and beyond them refused its way", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  const Adapter adapter(p);
  const auto most = [&] {
    return ibv_qp_cap{64, 64, p.queues.max_send_sge, p.queues.max_recv_sge, 0};
  };
  ibv_qp_cap cap = most();
  CHECK(adapter.make_qp(cap) != nullptr);
  for (std::uint32_t ibv_qp_cap::*which : {&ibv_qp_cap::max_send_sge, &ibv_qp_cap::max_recv_sge}) {
    cap = most();
    ++(cap.*which);
    adapter.refused(cap);
  }
  for (std::uint32_t ibv_qp_cap::*which : {&ibv_qp_cap::max_send_wr, &ibv_qp_cap::max_recv_wr}) {
    cap = most();
    cap.*which = p.queues.max_wr + 1;
    adapter.refused(cap);
  }
  CHECK(adapter.verbs.create_cq(adapter.context, p.queues.max_cqe + 1, nullptr, nullptr, 0) ==
        nullptr);
}

TEST_CASE("inline data are granted, cut or refused as by the provider", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  const Adapter adapter(p);
  ibv_qp_cap cap{16, 16, 1, 1, p.queues.max_inline};
  CHECK(adapter.make_qp(cap) != nullptr);
  CHECK(cap.max_inline_data == p.queues.max_inline);
  cap.max_inline_data = p.queues.max_inline + 1;
  if (p.queues.inline_limit == InlineLimit::refuse) return adapter.refused(cap);
  CHECK(adapter.make_qp(cap) != nullptr);
  CHECK(cap.max_inline_data ==
        p.queues.max_inline + (p.queues.inline_limit == InlineLimit::ignore ? 1 : 0));
}

TEST_CASE("memory is registered with the rights that the driver knows", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  Adapter adapter(p);
  constexpr unsigned kUsual =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  CHECK(adapter.register_memory(kUsual | IBV_ACCESS_RELAXED_ORDERING) != nullptr);
  const bool atomics = (p.memory.access & IBV_ACCESS_REMOTE_ATOMIC) != 0;
  CHECK((adapter.register_memory(kUsual | IBV_ACCESS_REMOTE_ATOMIC) != nullptr) == atomics);
  if (!atomics) CHECK(errno == EINVAL);
  errno = 0;
  CHECK(adapter.verbs.reg_dmabuf_mr(adapter.pd, 0, 4096, 0, -1, 0) == nullptr);
  CHECK(errno == (p.memory.dmabuf ? EBADF : EOPNOTSUPP));
  ibv_srq_init_attr srq{};
  srq.attr = {16, 1, 0};
  ibv_srq* const made = soft::create_srq(adapter.pd, &srq);
  CHECK((made != nullptr) == p.queues.srq);
  if (made != nullptr) CHECK(soft::destroy_srq(made) == 0);
}

TEST_CASE("a port's table of GIDs is as the kernel lays it out", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  const Adapter adapter(p);
  const ibv_port_attr port = adapter.port();
  CHECK(port.gid_tbl_len == p.ports.gid_entries);
  const int used = p.ports.gids == Gids::infiniband ? 1 : p.ports.gids == Gids::v2 ? 2 : 4;
  CHECK(adapter.gids() == used);
  for (int i = 0; i < used; ++i) {
    INFO(i);
    ibv_gid gid{};
    REQUIRE(adapter.verbs.query_gid(adapter.context, 1, i, &gid) == 0);
    CHECK((gid.raw[0] == 0xfe) == (i < (used + 1) / 2));
    const int version = soft::gid_version(adapter.verbs, adapter.context, i);
    CHECK(version == (p.ports.gids == Gids::infiniband ? 0 : used == 2 ? 2 : i % 2 + 1));
  }
  ibv_gid gid{};
  if (p.ports.gid_entries > used) {
    CHECK(adapter.verbs.query_gid(adapter.context, 1, used, &gid) == 0);
    CHECK((gid.global.subnet_prefix | gid.global.interface_id) == 0);
    ibv_gid_entry entry{};
    CHECK(soft::query_gid_entry(adapter.context, 1, static_cast<std::uint32_t>(used), &entry) ==
          ENODATA);
  }
  CHECK(adapter.verbs.query_gid(adapter.context, 1, p.ports.gid_entries, &gid) != 0);
}

TEST_CASE("a port says its speed, its LID and its longest message as the driver does", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  const Adapter adapter(p);
  const ibv_port_attr port = adapter.port();
  CHECK(port.max_msg_sz == p.ports.max_message);
  CHECK(port.link_layer ==
        (p.ports.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET));
  CHECK(port.flags == 0);
  CHECK((port.lid != 0) == (p.ports.infiniband || p.ports.roce_lid != 0));
  CHECK(port.active_speed <= 128);  // NDR: the old field knows no more
  CHECK(port.active_width == 2);    // 4X
  CHECK(adapter.device().atomic_cap == p.work.atomics);
  CHECK(adapter.device().vendor_id == p.identity.vendor_id);
  CHECK(adapter.device().vendor_part_id == p.identity.part_id);
}

TEST_CASE("options of connection establishment are the vendor's, or there are none", "[like]") {
  const Personality& p = any();
  INFO(p.name);
  const Adapter adapter(p);
  ibv_qp_cap cap{16, 16, 1, 1, 0};
  const auto qp = adapter.make_qp(cap);
  REQUIRE(qp != nullptr);
  ibv_ece ece{};
  CHECK(adapter.verbs.query_ece(qp.get(), &ece) == (p.ports.ece != 0 ? 0 : EOPNOTSUPP));
  if (p.ports.ece != 0) CHECK(ece.vendor_id == p.ports.ece_vendor);
}

namespace {

const char* atomics_text(ibv_atomic_cap cap) {
  return cap == IBV_ATOMIC_NONE ? "none" : cap == IBV_ATOMIC_HCA ? "adapter" : "global";
}

// A row of the table in README.md.
std::string row(const Personality& p) {
  std::ostringstream out;
  const auto n = [](auto v) { return std::to_string(v); };
  out << "| " << p.name << " | " << p.identity.device << "N | "
      << (p.queues.inline_limit == InlineLimit::ignore ? "ignored" : n(p.queues.max_inline))
      << " | " << p.queues.max_send_sge << ", " << p.queues.max_recv_sge << ", "
      << p.queues.max_read_sge << " | " << p.queues.max_wr << " | " << n(p.queues.reads_in) << ", "
      << n(p.queues.reads_out) << " | " << atomics_text(p.work.atomics) << " | "
      << (p.ports.gids == Gids::v2          ? "v2"
          : p.ports.gids == Gids::v1_and_v2 ? "v1, v2"
                                            : "InfiniBand")
      << " | " << (p.ports.max_message != 0 ? n(p.ports.max_message) : "not shown") << " |";
  if (!p.queues.srq) out << " no SRQ";
  if (!p.memory.dmabuf) out << " no dma-buf";
  if (p.ports.ece != 0) out << " ECE";
  if (p.ports.xdr) out << " XDR";
  out << " |";
  return out.str();
}

}  // namespace

TEST_CASE("README.md shows the table of adapters as it is", "[like]") {
  std::ifstream file(TWINPATH_SOURCE_ROOT "/plugin/fabric/soft/README.md");
  std::stringstream text;
  text << file.rdbuf();
  for (const Personality& p : soft::personalities()) {
    INFO("wanted:\n" << row(p));
    CHECK(text.str().find(row(p) + "\n") != std::string::npos);
  }
}

TEST_CASE("suites are run over every adapter that there is", "[like]") {
  const std::string run = std::string(",") + TWINPATH_LIKES + ",";
  for (const Personality& p : soft::personalities()) {
    INFO(p.name);
    CHECK(run.find("," + std::string(p.name) + ",") != std::string::npos);
  }
}
