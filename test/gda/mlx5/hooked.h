#pragma once
// A bench whose calls a test may have refused, and which remembers what was given back.  One at a
// time: the calls have no argument that could tell several apart.
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "test/gda/mlx5/bench.h"

namespace twinpath::test {

// The table's own calls, below those that a test puts before them.
inline Mlx5 real;
// Which command is refused: its opcode, the status byte, errno.
struct Refused {
  unsigned opcode = 0, status = 0;
  int error = 0;
};
inline Refused refused;
inline int uars_refused = 0, uars_asked = 0;
inline std::uint32_t last_uar_type = 0;

// Whether it is that command; the answer is the adapter's then.
inline bool refuses(const void* in, void* out) {
  const auto* const bytes = static_cast<const std::uint8_t*>(in);
  if (refused.opcode == 0 || bytes[0] * 256u + bytes[1] != refused.opcode) return false;
  auto* const answer = static_cast<std::uint8_t*>(out);
  std::memset(answer, 0, 16);
  answer[0] = static_cast<std::uint8_t>(refused.status);
  answer[6] = 0xbe;
  answer[7] = 0xef;
  return true;
}

// What was given back, in order: a queue pair, a completion queue, a page, memory.
inline std::string given_back;
inline std::vector<mlx5dv_devx_obj*> queue_pairs;

struct Hooked : Bench {
  explicit Hooked(const std::string& variant = "") : Bench(0, variant) {
    refused = {};
    uars_refused = uars_asked = 0;
    given_back.clear();
    queue_pairs.clear();
    real = mlx5;
    mlx5.devx_general_cmd = [](ibv_context* c, const void* in, std::size_t n, void* out,
                               std::size_t m) {
      return refuses(in, out) ? refused.error : real.devx_general_cmd(c, in, n, out, m);
    };
    mlx5.devx_obj_create = [](ibv_context* c, const void* in, std::size_t n, void* out,
                              std::size_t m) {
      if (!refuses(in, out)) {
        mlx5dv_devx_obj* const made = real.devx_obj_create(c, in, n, out, m);
        if (static_cast<const std::uint8_t*>(in)[0] == 5) queue_pairs.push_back(made);
        return made;
      }
      errno = refused.error;
      return static_cast<mlx5dv_devx_obj*>(nullptr);
    };
    mlx5.devx_obj_modify = [](mlx5dv_devx_obj* o, const void* in, std::size_t n, void* out,
                              std::size_t m) {
      return refuses(in, out) ? refused.error : real.devx_obj_modify(o, in, n, out, m);
    };
    mlx5.devx_obj_destroy = [](mlx5dv_devx_obj* o) {
      given_back += std::erase(queue_pairs, o) != 0 ? 'Q' : 'C';  // addresses come again
      return real.devx_obj_destroy(o);
    };
    mlx5.devx_free_uar = [](mlx5dv_devx_uar* page) {
      given_back += 'P';
      real.devx_free_uar(page);
    };
    mlx5.devx_umem_dereg = [](mlx5dv_devx_umem* umem) {
      given_back += 'M';
      return real.devx_umem_dereg(umem);
    };
    mlx5.devx_alloc_uar = [](ibv_context* c, std::uint32_t type) {
      ++uars_asked;
      last_uar_type = type;
      if (uars_asked > uars_refused) return real.devx_alloc_uar(c, type);
      errno = EOPNOTSUPP;
      return static_cast<mlx5dv_devx_uar*>(nullptr);
    };
  }
  Status open() {
    auto made = gda::mlx5::Adapter::make(fabric->verbs, mlx5, rail);
    if (!made) return made.status();
    driven = std::move(made).take();
    return Status::ok;
  }
  Status make(unsigned log_depth = 4) {
    gda::mlx5::ContextQueuesSetup setup;
    setup.log_depth = log_depth;
    setup.companions = true;
    setup.peers = {"rank 3 (host7)"};
    auto made = gda::mlx5::ContextQueues::make(*driven, setup);
    if (!made) return made.status();
    queues = std::move(made).take();
    return Status::ok;
  }
  std::unique_ptr<gda::mlx5::Adapter> driven;
  std::unique_ptr<gda::mlx5::ContextQueues> queues;
};

}  // namespace twinpath::test
