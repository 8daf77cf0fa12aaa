#pragma once
// What only a try can tell: whether an HCA registers memory of a GPU, by dma-buf or through
// nvidia_peermem, whether the GPU maps the HCA's doorbell page, whether atomics work on its memory.
// The answers differ from pair to pair on one machine, so each pair is tried by itself, once.
//
// Threads: ProbeCache any; the first caller for a pair tries, others of that pair wait.
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "plugin/fabric/mlx5.h"
#include "plugin/fabric/verbs.h"
#include "topology/model/reason.h"

namespace twinpath {

enum class Answer : std::uint8_t { untried, no, yes };
std::string_view name_of(Answer answer);  // "not tried", "no", "yes"

struct Probe {
  Answer answer = Answer::untried;
  int error = 0;                 // errno, or CUDA's number for the doorbell
  Reason reason = Reason::none;  // why not
  std::string note;              // what was called and what it said, or why nothing was tried
};

inline Probe not_tried(std::string why) {
  return {Answer::untried, 0, Reason::none, std::move(why)};
}

struct ProbeResults {
  Probe dmabuf;
  Probe peermem;
  Probe uar;
  Probe atomics;
  Probe data_direct;  // by dma-buf and the adapter's data-direct function

  bool gdr() const { return dmabuf.answer == Answer::yes || peermem.answer == Answer::yes; }
  bool gdr_untried() const {
    return dmabuf.answer == Answer::untried && peermem.answer == Answer::untried;
  }
  // The probe that says most about why GDR does not work.
  const Probe& gdr_refusal() const;
};

// What an errno of a registration means.  524 (ENOTSUPP) is the kernel's internal "no peer-to-peer
// between these two"; EFAULT is how ibv_reg_mr answers a CUDA pointer without nvidia_peermem.
Reason reason_of_gdr_error(int error);
// What a CUDA error of mapping the doorbell page means.
Reason reason_of_uar_error(int cuda_error, bool virtual_function);

// One probe each; an empty function is "not tried".  `gpu` is the CUDA ordinal.
struct ProbeSteps {
  std::function<Probe(int gpu, ibv_pd* pd)> dmabuf;
  std::function<Probe(int gpu, ibv_pd* pd)> peermem;
  std::function<Probe(int gpu, ibv_pd* pd)> uar;
  std::function<Probe(int gpu, ibv_pd* pd)> atomics;
  std::function<Probe(int gpu, ibv_pd* pd)> data_direct;
};

// Memory of a GPU for the length of a call of `use`; a dma-buf of it where wanted, otherwise fd is
// -1.  What it returns is `use`'s answer, or why there was no memory.
using UseGpuMemory = std::function<Probe(std::uint64_t address, std::size_t bytes, int dmabuf_fd)>;
using WithGpuMemory = std::function<Probe(int gpu, bool dmabuf, const UseGpuMemory& use)>;

// Registers that memory through the table, and drops the registration.  The doorbell is not tried:
// a context whose queues the GPU rings tries it itself.  The table must outlive the steps.
ProbeSteps registration_steps(const Verbs& verbs, WithGpuMemory memory);

// Maps a doorbell page of an mlx5 adapter into the GPU, as such a context would, and lets it go.
// For tools: in a job, the mapping of a page in use would be the one that is found.  The table must
// outlive the step.
std::function<Probe(int gpu, ibv_pd* pd)> doorbell_step(
    const Mlx5& mlx5, std::function<bool(const ibv_device*)> virtual_function);

// CUDA memory for the steps above.  "Not tried" where the program has not loaded the CUDA driver,
// or does not use that GPU: a context there would take hundreds of megabytes from another process.
// Freeing CUDA memory may wait for kernels, so probe where NCCL initialises, never later.
WithGpuMemory cuda_memory();

// The CUDA ordinal of a GPU by its bus id; nullopt without a driver or such a GPU.
std::optional<int> cuda_ordinal(const std::string& bus_id);

class ProbeCache {
 public:
  explicit ProbeCache(ProbeSteps steps) : steps_(std::move(steps)) {}
  // With `data_direct` that function is tried, too.  An answer "not tried" is asked for again: the
  // program may come to use the GPU later.
  ProbeResults get(int gpu, ibv_pd* pd, bool data_direct = false);

 private:
  struct Entry {
    std::mutex mutex;
    ProbeResults results;
  };
  ProbeSteps steps_;
  std::mutex mutex_;
  std::map<std::pair<int, ibv_pd*>, Entry> entries_;  // addresses of entries stay
};

}  // namespace twinpath
