#pragma once
// The blocks that a sender lays parcels in: a pool for each of its rails, shared with the session's
// other senders (queues/parcel_pool.h).  A request keeps the block of the parcel whose completion
// it gets.
//
// Threads: under the hub's lock.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "proxy/queues/parcel_pool.h"
#include "proxy/send/send_batch.h"
#include "proxy/send/send_request.h"

namespace twinpath {

class ParcelBlocks {
 public:
  explicit ParcelBlocks(std::size_t rails) : pools_(rails) {}
  bool known(std::size_t rail) const { return pools_[rail] != nullptr; }
  // `pool` outlives this; null: no parcels leave by that rail.
  void serve(std::size_t rail, ParcelPool* pool) { pools_[rail] = pool; }
  ParcelPool* pool(std::size_t rail) const { return pools_[rail]; }

  // A block for the parcel whose completion `r` gets, without its number; no data: there is none.
  SendBatch::Parcel take(SendRequest& r, std::uint8_t rail) {
    ParcelPool* const pool = pools_[rail];
    const std::uint16_t block = pool == nullptr ? kNoBlock : pool->take();
    if (block == kNoBlock) return {};
    keep(r, rail, block);
    return {pool->data(block), pool->lkey(), 0};
  }
  // One that was taken from the pool before.
  void keep(SendRequest& r, std::uint8_t rail, std::uint16_t block) {
    r.block_ = block;
    r.pool_ = rail;
  }
  // If it has one: nobody reads it any more.
  void give_back(SendRequest& r) {
    if (r.block_ != kNoBlock) pools_[r.pool_]->give(std::exchange(r.block_, kNoBlock));
  }

 private:
  std::vector<ParcelPool*> pools_;  // by rail
};

}  // namespace twinpath
