// NCCL_IB_HCA: first line the filter, the rest a device name to ask it about.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "plugin/fabric/fabric.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace twinpath;
  const std::string all(data, data + size);
  const std::size_t cut = all.find('\n');
  const std::string filter_text = all.substr(0, cut);
  const std::string device = cut == std::string::npos ? "mlx5_0" : all.substr(cut + 1);
  std::string why;
  const auto filter = HcaFilter::parse(filter_text, why);
  if (!filter) {
    if (why.empty()) std::abort();
    return 0;
  }
  if (filter->empty() && !filter->accepts(device, 1)) std::abort();  // no filter takes all
  (void)filter->accepts(device, 2);
  (void)filter->unmatched({{device, 1}, {"mlx5_0", 1}});
  return 0;
}
