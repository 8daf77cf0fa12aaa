// The tuner for the soft HCA: its choices as a table, and the built library as NCCL calls it.
#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "plugin/nccl/abi/tuner.h"
#include "plugin/nccl/tuner/choice.h"
#include "test/support/catch.h"

namespace twinpath::test {
namespace {

using namespace twinpath::abi;
using tuner::choose;
using tuner::Memory;

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr int kAlgorithms = 7, kProtocols = 3;
constexpr float kNo = kAlgoProtoIgnore;

// NCCL's rows: tree, ring, two of CollNet, two of NVLS, PAT.
std::vector<float> costs() {
  std::vector<float> out(std::size_t{kAlgorithms} * kProtocols, kNo);
  const float tree[] = {10, kNo, 30}, ring[] = {11, kNo, 31};
  std::copy(std::begin(tree), std::end(tree), out.begin());
  std::copy(std::begin(ring), std::end(ring), out.begin() + kProtocols);
  return out;
}

void* open_tuner() {
  const char* path = std::getenv("TWINPATH_TEST_TUNER");
  REQUIRE(path != nullptr);
  void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  INFO(path);
  REQUIRE(library != nullptr);
  return library;
}

template <class Table>
const Table& table(void* library, const char* symbol) {
  const void* const found = ::dlsym(library, symbol);
  REQUIRE(found != nullptr);
  return *static_cast<const Table*>(found);
}

}  // namespace

TEST_CASE("channels and LL by what a step moves") {
  struct Row {
    ncclFunc_t function;
    std::size_t bytes, ranks;
    bool no_ll;
    int channels;
  };
  const Row rows[] = {
      {ncclFuncAllReduce, 8, 2, false, 1},
      {ncclFuncAllReduce, 32 * kKiB, 2, false, 1},
      {ncclFuncAllReduce, 33 * kKiB, 2, false, 2},
      {ncclFuncAllReduce, 64 * kKiB, 2, false, 2},
      {ncclFuncAllReduce, 64 * kKiB + 8, 2, true, 1},
      {ncclFuncAllReduce, 256 * kKiB, 2, true, 1},
      {ncclFuncAllReduce, 2 * kMiB, 2, true, 2},
      {ncclFuncAllReduce, 8 * kMiB, 2, true, 4},
      {ncclFuncAllReduce, 16 * kMiB, 2, true, 8},
      {ncclFuncAllReduce, 256 * kMiB, 2, true, 0},
      {ncclFuncAllReduce, 256 * kKiB, 8, false, 2},
      {ncclFuncAllGather, 256 * kKiB, 8, false, 2},
      {ncclFuncReduceScatter, 512 * kKiB, 2, true, 1},
      {ncclFuncBroadcast, 256 * kKiB, 8, true, 1},
      {ncclFuncReduce, 32 * kKiB, 8, false, 2},
      {ncclFuncAllReduce, 256 * kMiB, 1, false, 0},
      {static_cast<ncclFunc_t>(99), 256 * kKiB, 2, true, 1},
      {ncclFuncAllReduce, ~std::size_t{0}, 2, true, 0},
  };
  for (const Row& row : rows) {
    CAPTURE(row.function, row.bytes, row.ranks);
    const tuner::Choice got = choose(row.function, row.bytes, row.ranks, Memory::gpu);
    CHECK(got.no_ll == row.no_ll);
    CHECK(got.channels == row.channels);
  }
}

TEST_CASE("in host memory LL goes from 64 KiB a step on, and channels are NCCL's") {
  struct Row {
    ncclFunc_t function;
    std::size_t bytes, ranks;
    bool no_ll;
  };
  for (const Row& row : {
           Row{ncclFuncAllReduce, 8, 2, false},
           Row{ncclFuncAllReduce, 128 * kKiB, 2, false},
           Row{ncclFuncAllReduce, 128 * kKiB + 8, 2, true},
           Row{ncclFuncAllReduce, 512 * kKiB, 8, false},
           Row{ncclFuncBroadcast, 64 * kKiB, 8, false},
           Row{ncclFuncReduce, 64 * kKiB + 1, 8, true},
           Row{ncclFuncAllReduce, 256 * kMiB, 2, true},
           Row{ncclFuncAllReduce, 256 * kMiB, 1, false},
       }) {
    CAPTURE(row.function, row.bytes, row.ranks);
    const tuner::Choice got = choose(row.function, row.bytes, row.ranks, Memory::host);
    CHECK(got.no_ll == row.no_ll);
    CHECK(got.channels == 0);
  }
}

TEST_CASE("LL goes only where something else is left, and nothing that was ruled out comes back") {
  const tuner::Choice no_ll{true, 1};
  auto table = costs();
  tuner::rule_out(no_ll, table.data(), kAlgorithms, kProtocols);
  auto wanted = costs();
  wanted[0] = wanted[kProtocols] = tuner::kTooDear;
  CHECK(table == wanted);

  // NCCL_PROTO=LL
  auto only_ll = costs();
  only_ll[kProtoSimple] = only_ll[kProtocols + kProtoSimple] = kNo;
  const auto before = only_ll;
  tuner::rule_out(no_ll, only_ll.data(), kAlgorithms, kProtocols);
  CHECK(only_ll == before);
  // LL128 in its place
  only_ll[kProtocols + kProtoLl128] = 20;
  tuner::rule_out(no_ll, only_ll.data(), kAlgorithms, kProtocols);
  CHECK(only_ll[kProtocols] == tuner::kTooDear);
  CHECK(only_ll[0] == 10);

  auto small = costs();
  tuner::rule_out({false, 2}, small.data(), kAlgorithms, kProtocols);
  CHECK(small == costs());
  // A table of an NCCL that we do not know.
  float narrow[] = {1, 2};
  tuner::rule_out(no_ll, narrow, 1, 2);
  CHECK(narrow[0] == 1);
}

TEST_CASE("the library, as NCCL calls it") {
  void* const library = open_tuner();
  const auto& v3 = table<ncclTuner_v3_t>(library, "ncclTunerPlugin_v3");
  const auto& v4 = table<ncclTuner_v4_t>(library, "ncclTunerPlugin_v4");
  CHECK(std::string(v4.name) == "Twinpath soft HCA");
  struct Row {
    std::size_t ranks, nodes;
    bool acts;
  };
  // Two GPUs a node: what NCCL chooses stays.
  for (const Row& row : {Row{2, 2, true}, Row{4, 2, false}, Row{1, 1, false}}) {
    CAPTURE(row.ranks, row.nodes);
    for (const bool newer : {false, true}) {
      void* context = library;
      REQUIRE((newer ? v4.init : v3.init)(row.ranks, row.nodes, nullptr, &context) == ncclSuccess);
      auto all = costs();
      auto* const as_nccl = reinterpret_cast<float**>(all.data());
      int channels = 0;
      const ncclResult_t got = newer
                                   ? v4.getCollInfo(context, ncclFuncAllReduce, 256 * kKiB, 1,
                                                    as_nccl, kAlgorithms, kProtocols, 0, &channels)
                                   : v3.getCollInfo(context, ncclFuncAllReduce, 256 * kKiB, 1,
                                                    as_nccl, kAlgorithms, kProtocols, &channels);
      CHECK(got == ncclSuccess);
      CHECK((all[kProtocols] == tuner::kTooDear) == row.acts);
      // Whoever takes the least of what is not ruled out, and whoever takes the least of all that
      // NCCL itself had not ruled out (2.31 on), comes to Simple.
      if (row.acts) CHECK(all[kProtocols] > all[kProtocols + kProtoSimple]);
      CHECK(channels == (row.acts ? 1 : 0));
      CHECK((newer ? v4.destroy : v3.destroy)(context) == ncclSuccess);
    }
  }
  // Host memory only, as every spelling of the setting says it: LL stays at 128 KiB, and no
  // channels.
  struct Setting {
    const char* value;
    bool host;
  };
  for (const Setting& setting : {Setting{"0", true}, Setting{"process", false},
                                 Setting{"inprocess", false}, Setting{"nonsense", false}}) {
    CAPTURE(setting.value);
    REQUIRE(::setenv("TWINPATH_SOFT_CUDA", setting.value, 1) == 0);
    void* context = nullptr;
    REQUIRE(v4.init(2, 2, nullptr, &context) == ncclSuccess);
    auto all = costs();
    int channels = 0;
    CHECK(v4.getCollInfo(context, ncclFuncAllReduce, 128 * kKiB, 1,
                         reinterpret_cast<float**>(all.data()), kAlgorithms, kProtocols, 0,
                         &channels) == ncclSuccess);
    CHECK((all == costs()) == setting.host);
    CHECK(channels == (setting.host ? 0 : 1));
    CHECK(v4.destroy(context) == ncclSuccess);
  }
  CHECK(::unsetenv("TWINPATH_SOFT_CUDA") == 0);
  int channels = 0;
  CHECK(v4.getCollInfo(nullptr, ncclFuncAllReduce, 8, 1, nullptr, 0, 0, 0, &channels) ==
        ncclSuccess);
  CHECK(v4.init(2, 2, nullptr, nullptr) == ncclInvalidArgument);
  // NCCL looks for the net plugin's symbols in it, too, when it is named by mistake.
  CHECK(::dlsym(library, "ncclNetPlugin_v10") == nullptr);
  CHECK(::dlclose(library) == 0);
}

}  // namespace twinpath::test
