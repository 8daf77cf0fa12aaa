#pragma once
// libmlx5's calls over the model: what a program sees of it.  The plugin takes its table of them
// from here (plugin/fabric/mlx5.h), and tools/softhca's libmlx5.so.1 is a thin layer on it.
//
// Shapes, ownership and errors are those of the mlx5dv_ calls of the same names.  Threads: any.
#include <infiniband/mlx5dv.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "plugin/fabric/soft/mlx5/device.h"
#include "plugin/fabric/soft/mlx5/doorbell_pages.h"
#include "plugin/fabric/soft/mlx5/execution.h"
#include "plugin/fabric/soft/mlx5/surroundings.h"

// Opaque in mlx5dv.h.
struct mlx5dv_devx_obj {
  ibv_context* context = nullptr;
  std::uint32_t number = 0;
  twinpath::soft::mlx5::Opcode made_by{};
  bool known = true;  // to the device; else its destruction always succeeds
};

namespace twinpath::soft::mlx5 {

class Library {
 public:
  explicit Library(const Surroundings& around) : around_(around) {}
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  int init_obj(mlx5dv_obj* obj, std::uint64_t types);
  int query_device(ibv_context* context, mlx5dv_context* attr) const;

  mlx5dv_devx_uar* alloc_uar(ibv_context* context, std::uint32_t type);
  // Whether Surroundings::adorn_register gave something for it.
  static bool adorned(const mlx5dv_devx_uar& uar);
  // The context that it was made of.
  static ibv_context* context_of(const mlx5dv_devx_uar& uar);
  static ibv_context* context_of(const mlx5dv_devx_umem& umem);
  // For the next who asks; its page stays as long as the context.
  void free_uar(mlx5dv_devx_uar* uar);
  mlx5dv_devx_umem* umem_reg(ibv_context* context, void* address, std::size_t bytes,
                             std::uint32_t access);
  mlx5dv_devx_umem* umem_reg_ex(ibv_context* context, mlx5dv_devx_umem_in* in);
  int umem_dereg(mlx5dv_devx_umem* umem);

  // `out` may be where `in` is.
  mlx5dv_devx_obj* obj_create(ibv_context* context, const void* in, std::size_t in_bytes, void* out,
                              std::size_t out_bytes);
  int obj_modify(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                 std::size_t out_bytes);
  int obj_query(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                std::size_t out_bytes);
  int obj_destroy(mlx5dv_devx_obj* object);
  int general_cmd(ibv_context* context, const void* in, std::size_t in_bytes, void* out,
                  std::size_t out_bytes);
  static int query_eqn(ibv_context* context, std::uint32_t vector, std::uint32_t* eqn);

  // A number from the space that the devices' objects have theirs from.
  std::uint32_t next_number() { return ++last_number_ & 0xffffff; }
  // The context is closed: its queues are nobody's any more.
  void forget(ibv_context* context);

 private:
  struct Opened {
    std::unique_ptr<DoorbellPages> pages;  // first: the others look at them
    std::unique_ptr<Execution> execution;
    std::unique_ptr<Device> device;
  };
  enum class Call { create, modify, query, general };

  static bool belongs(Call call, Opcode opcode);
  static bool asks_only(Opcode opcode);
  static bool fits(Opcode opcode, Opcode maker);
  Opened& of(ibv_context* context);
  Device& device_of(ibv_context* context) { return *of(context).device; }
  Execution& execution_of(ibv_context* context) { return *of(context).execution; }
  std::uint32_t number_of(Kind kind, ibv_context* context, const void* queue);
  void show(ibv_cq* in, mlx5dv_cq& out);
  void show(ibv_srq* in, mlx5dv_srq& out);
  int carry_out(Call call, ibv_context* context, const mlx5dv_devx_obj* object, const void* in,
                std::size_t in_bytes, void* out, std::size_t out_bytes);

  const Surroundings around_;
  std::mutex lock_;
  std::map<const ibv_context*, Opened> opened_;
  // Of completion and receive queues that verbs made; a queue that is gone leaves its entry, whose
  // number nobody else has.
  std::map<const void*, std::uint32_t> verbs_numbers_;
  std::atomic<std::uint32_t> last_number_{0x100};
};

// The number of what a command is about, or of what its answer says was made.
std::uint32_t number_in(std::span<const std::uint8_t> command);

}  // namespace twinpath::soft::mlx5
