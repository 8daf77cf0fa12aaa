// See gpu_words.h.
#include "gda/served/back/gpu_words.h"

#include "gda/served/back/looped_words.h"
#include "gda/served/back/updated_words.h"
#include "plugin/gpu/driver.h"

namespace twinpath::gda {

Result<std::unique_ptr<GpuWords>> GpuWords::make(const TeamCore& team, WordTurn& turn,
                                                 const Values& values) {
  if (gpu::cuda::driver() == nullptr) return std::unique_ptr<GpuWords>();
  if (team.verbs().ordered) return std::unique_ptr<GpuWords>(std::make_unique<UpdatedWords>());
  return LoopedWords::make(team, turn, values);
}

}  // namespace twinpath::gda
