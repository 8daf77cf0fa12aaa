// The placement record of a peer that is not trusted yet, and a platform file of any content.
// Whatever decodes must encode to the same bytes' meaning and must be decided without surprise.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "topology/decide/decision.h"
#include "topology/decide/overrides.h"
#include "topology/decide/policy.h"

namespace {

using namespace twinpath;

void decide_with(const PlacementRecord& theirs) {
  PlacementRecord mine;
  mine.capabilities = kCanLand | kCanSource | kCanGpuRing | kCanDevx | kCanGpuIssue;
  mine.land.log2 = mine.source.log2 = kAlwaysDirect;
  for (const Use use : {Use{Pattern::bulk, false}, Use{Pattern::latency, true}}) {
    const Decision here = decide(mine, theirs, use);
    const Decision there = decide(theirs, mine, use);
    if (here.send != there.recv || here.recv != there.send) std::abort();
    if (!theirs.can(kCanLand) && here.send.landing.direct_max != 0) std::abort();
    if (!theirs.can(kCanSource) && here.recv.source.direct_max != 0) std::abort();
    if (summary(here, mine, theirs, {"a", "GPU0", "x"}, {"b", "GPU1", "y"}).empty()) std::abort();
    if (explain(here.recv, theirs, mine, {}, {}).empty()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> bytes(data, size);
  PlacementRecord record;
  std::string why;
  if (decode_record(bytes, record, why)) {
    PlacementRecord again;
    if (!decode_record(encode_record(record), again, why) || again != record) std::abort();
    decide_with(record);
  } else if (why.empty()) {
    std::abort();
  }
  // Once more with the checksum made right, to get behind it.
  if (size >= kRecordBytes) {
    std::vector<std::uint8_t> sealed(data, data + kRecordBytes);
    const std::uint32_t crc = crc32(std::span(sealed).first(kRecordBytes - 4));
    for (std::size_t i = 0; i < 4; ++i)
      sealed[kRecordBytes - 4 + i] = static_cast<std::uint8_t>((crc >> (8 * i)) & 0xff);
    if (decode_record(sealed, record, why)) decide_with(record);
  }
  const PlatformFile file = PlatformFile::parse({reinterpret_cast<const char*>(data), size});
  for (const std::string& error : file.errors()) {
    for (const char c : error) {
      if (c < 0x20 || c > 0x7e) std::abort();
    }
  }
  (void)file.pair("0000:17:00.0", "mlx5_0");
  return 0;
}
