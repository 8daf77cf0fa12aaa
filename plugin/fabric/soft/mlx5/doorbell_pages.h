#pragma once
// Doorbell registers of one context, as libmlx5 hands them out: from rdma-core 45 on "dedicated"
// ones, four of a page, which are given out again when they come back; before that one for the
// whole context, at one address for whoever asks ("NC").  Those that gather writes ("BF") are two
// of a page.  No page goes before the context is closed, because other registers of it may be in
// use.
//
// Threads: any; one lock.
#include <infiniband/mlx5dv.h>

#include <deque>
#include <list>
#include <memory>
#include <mutex>

#include "plugin/fabric/soft/mlx5/device.h"
#include "plugin/fabric/soft/mlx5/execution.h"
#include "plugin/fabric/soft/mlx5/surroundings.h"

namespace twinpath::soft::mlx5 {

class DoorbellPages {
 public:
  // All outlive it.
  DoorbellPages(const Surroundings& around, ibv_context* context, Device& device,
                Execution& execution);
  ~DoorbellPages();
  DoorbellPages(const DoorbellPages&) = delete;
  DoorbellPages& operator=(const DoorbellPages&) = delete;

  // Null with errno.
  mlx5dv_devx_uar* take(std::uint32_t type);
  void give_back(mlx5dv_devx_uar* given);

  static ibv_context* context_of(const mlx5dv_devx_uar& uar);
  // Whether Surroundings::adorn_register gave something for it.
  static bool adorned(const mlx5dv_devx_uar& uar);

 private:
  struct Page;
  struct Register;
  using Free = std::deque<Register*>;
  Register* shared();
  Register* from(Free& free, std::size_t registers, std::size_t stride);
  bool add_page(Free& free, std::size_t registers, std::size_t stride);

  const Surroundings& around_;
  ibv_context* const context_;
  Device& device_;
  Execution& execution_;
  std::mutex lock_;
  std::list<std::shared_ptr<Page>> pages_;
  std::list<Register> registers_;  // go first
  Register* shared_ = nullptr;
  Free shared_page_, dedicated_, gathering_;
};

}  // namespace twinpath::soft::mlx5
