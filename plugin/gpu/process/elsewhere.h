#pragma once
// All that a program has in its copy process: the process itself, a forwarder for each GPU, and
// where memory lies there.
//
// Threads: any.  submit and chosen take no lock.
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plugin/gpu/process/forwarder.h"

namespace twinpath::gpu::process {

class Elsewhere {
 public:
  // Process-wide, as GPUs and their driver are.  Null: copies are made in this process.
  static Elsewhere* chosen();
  static void choose(const std::string& executable, HelperCpus cpus);

  Elsewhere(std::string executable, HelperCpus cpus)
      : executable_(std::move(executable)), cpus_(cpus) {}
  // With a process that is there already, for tests.
  explicit Elsewhere(std::unique_ptr<CopyProcess> process);
  static void choose(std::unique_ptr<Elsewhere> made);
  ~Elsewhere();
  Elsewhere(const Elsewhere&) = delete;
  Elsewhere& operator=(const Elsewhere&) = delete;

  Status ready(std::string& why);
  Status open(int gpu);
  Status submit(CopyJob* job);
  using Imported = Result<std::shared_ptr<ImportedAllocation>>;
  Imported import(const ExportedAllocation& exported);
  Imported import_own(const PointerInfo& info);
  void stop();
  void leave();  // at process end
  CopyStatistics counts() const;

 private:
  static constexpr int kMaxGpus = 64;
  class Allocation;

  void learn_gpus();
  Status start(std::string& why);  // mutex_ held
  Forwarder* forwarder(int gpu) const;
  Forwarder* forwarder_for(const CopyJob& job) const;
  int own_ordinal(const GpuUuid& uuid) const;
  std::shared_ptr<ImportedAllocation> known_own(const PointerInfo& info);

  const std::string executable_;
  const HelperCpus cpus_ = HelperCpus::near;
  const pid_t owner_ = ::getpid();
  std::mutex mutex_;  // starting and opening
  bool tried_ = false;
  Status started_ = Status::ok;
  std::string why_;
  std::vector<GpuUuid> gpus_;  // by our ordinal
  std::unique_ptr<CopyProcess> process_;
  AddressMap map_;
  std::atomic<std::uint64_t> next_id_{1};
  std::mutex own_mutex_;
  std::map<std::uint64_t, std::weak_ptr<Allocation>> own_;  // by first address
  std::array<std::unique_ptr<Forwarder>, kMaxGpus> forwarders_;
  std::array<std::atomic<Forwarder*>, kMaxGpus> seen_{};
};

}  // namespace twinpath::gpu::process
