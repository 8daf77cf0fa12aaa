// See gpu_words.h.
#include "gda/served/back/gpu_words.h"

#include "gda/served/back/looped_words.h"
#include "gda/served/back/updated_words.h"
#include "plugin/gpu/driver.h"

namespace twinpath::gda {

Result<std::unique_ptr<GpuWords>> GpuWords::make(TeamCore& team, WordTurn& turn, GpuFlush* flush,
                                                 const Values& values) {
  if (gpu::cuda::driver() == nullptr) return std::unique_ptr<GpuWords>();
  if (team.verbs().ordered) return std::unique_ptr<GpuWords>(std::make_unique<UpdatedWords>());
  if (flush == nullptr) return std::unique_ptr<GpuWords>();  // the driver was not there before
  return LoopedWords::make(team, turn, *flush, values);
}

}  // namespace twinpath::gda
