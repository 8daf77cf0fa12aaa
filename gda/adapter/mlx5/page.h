#pragma once
// A doorbell page of the adapter: one per context, for all of its queues.
#include "gda/adapter/mlx5/adapter.h"

namespace twinpath::gda::mlx5 {

class DoorbellPage {
 public:
  // Of its own where the driver has such pages, else one that other queues of the process may ring,
  // too.  Never one that gathers writes (BlueFlame): doorbells would linger.
  static Result<DoorbellPage> make(const Adapter& adapter);

  // Where 8 bytes ring a queue: an address of this process.
  void* bell() const { return page_->reg_addr; }
  std::uint32_t number() const { return page_->page_id; }

 private:
  explicit DoorbellPage(Handle<mlx5dv_devx_uar> page) : page_(std::move(page)) {}
  Handle<mlx5dv_devx_uar> page_;
};

}  // namespace twinpath::gda::mlx5
