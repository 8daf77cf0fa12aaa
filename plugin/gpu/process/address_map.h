#pragma once
// Where memory that the program knows by an address of its own lies in the copy process.
//
// Own memory of a GPU keeps its address.  Memory of another process gets one that stands for
// nothing else here: a range without pages.  So one number says which memory is meant, and no two
// can be taken for each other.
//
// Threads: add, remove, newest: any.  An AddressView belongs to one thread, which sees every change
// that was made before a job was handed to it.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace twinpath::gpu::process {

struct Mapped {
  std::uint64_t start = 0, bytes = 0;  // here
  std::uint64_t there = 0;             // address of `start` in the copy process
  std::uint64_t id = 0;
  int gpu = -1;  // ordinal there
};

class AddressMap {
 public:
  using Table = std::vector<Mapped>;  // sorted by start, disjoint

  // What it overlaps is memory that has been given back, and goes.
  void add(const Mapped& range);
  void remove(std::uint64_t id);
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }
  std::shared_ptr<const Table> newest() const;

 private:
  void publish(Table table);  // lock held

  mutable std::mutex mutex_;
  std::shared_ptr<const Table> table_ = std::make_shared<Table>();
  std::atomic<std::uint64_t> version_{0};
};

class AddressView {
 public:
  explicit AddressView(const AddressMap& map) : map_(map) {}
  // The range that holds [address, address+bytes); null: there is none.  Takes the map's lock only
  // when it has changed.
  const Mapped* find(std::uint64_t address, std::uint64_t bytes);

 private:
  const AddressMap& map_;
  std::uint64_t version_ = ~std::uint64_t{0};
  std::shared_ptr<const AddressMap::Table> table_;
};

}  // namespace twinpath::gpu::process
