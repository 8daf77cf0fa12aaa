#pragma once
// Every command that our driver gives to an adapter, and its answer, appended to the file
// TWINPATH_TEST_RECORD in the format of TWINPATH_SOFT_RECORD (tools/softhca/README.md): what a
// first visit to an adapter brings home (tools/bringup.sh).  A queue that has become ready is asked
// for all of its state, too.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <string_view>

#include "gda/adapter/mlx5/commands.h"
#include "gda/adapter/mlx5/layout.h"
#include "plugin/fabric/mlx5.h"

namespace twinpath::test {

// The calls have no argument that could carry either.
inline Mlx5 recorded;
inline int record_file = -1;

inline std::string hex_of(const void* data, std::size_t bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < bytes; ++i) {
    const unsigned b = static_cast<const std::uint8_t*>(data)[i];
    out += {kDigits[b >> 4], kDigits[b & 15]};
  }
  return out;
}

struct Given {
  const char* call;
  const void* in;
  std::size_t in_bytes;
  void* out;
  std::size_t out_bytes;
};

inline int write_down(const Given& g, int result) {
  const int error = errno;
  const std::string line = std::string("{\"call\":\"") + g.call + "\",\"in\":\"" +
                           hex_of(g.in, g.in_bytes) + "\",\"out\":\"" + hex_of(g.out, g.out_bytes) +
                           "\",\"result\":" + std::to_string(result) + "}\n";
  (void)!::write(record_file, line.data(), line.size());  // one write: several processes append
  errno = error;
  return result;
}

inline unsigned opcode_of(const void* in) {
  const auto* const bytes = static_cast<const std::uint8_t*>(in);
  return bytes[0] * 256u + bytes[1];
}

inline void ask_for_all(mlx5dv_devx_obj* queue, const void* in) {
  std::array<std::uint8_t, gda::mlx5::kShortBytes> question{0x05, 0x0b};
  std::copy_n(static_cast<const std::uint8_t*>(in) + 8, 4, question.begin() + 8);
  std::array<std::uint8_t, gda::mlx5::qp::kBytes> answer{};
  const int result = recorded.devx_obj_query(queue, question.data(), question.size(), answer.data(),
                                             answer.size());
  write_down({"devx_obj_query", question.data(), question.size(), answer.data(), answer.size()},
             result);
}

// Of tests whose commands are wrong on purpose, which say nothing against an adapter.
inline void stop_recording(Mlx5& table) {
  if (recorded.devx_general_cmd != nullptr) table = recorded;
}

inline void record_commands(Mlx5& table) {
  const char* const path = std::getenv("TWINPATH_TEST_RECORD");
  if (path == nullptr) return;
  if (record_file < 0)
    record_file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
  recorded = table;
  table.devx_general_cmd = [](ibv_context* c, const void* in, std::size_t n, void* out,
                              std::size_t m) {
    return write_down({"devx_general_cmd", in, n, out, m},
                      recorded.devx_general_cmd(c, in, n, out, m));
  };
  table.devx_obj_create = [](ibv_context* c, const void* in, std::size_t n, void* out,
                             std::size_t m) {
    mlx5dv_devx_obj* const made = recorded.devx_obj_create(c, in, n, out, m);
    write_down({"devx_obj_create", in, n, out, m}, made == nullptr ? errno : 0);
    return made;
  };
  table.devx_obj_modify = [](mlx5dv_devx_obj* o, const void* in, std::size_t n, void* out,
                             std::size_t m) {
    const int result =
        write_down({"devx_obj_modify", in, n, out, m}, recorded.devx_obj_modify(o, in, n, out, m));
    if (result == 0 && opcode_of(in) == static_cast<unsigned>(gda::mlx5::Opcode::rtr2rts_qp))
      ask_for_all(o, in);
    return result;
  };
  table.devx_obj_query = [](mlx5dv_devx_obj* o, const void* in, std::size_t n, void* out,
                            std::size_t m) {
    return write_down({"devx_obj_query", in, n, out, m}, recorded.devx_obj_query(o, in, n, out, m));
  };
}

}  // namespace twinpath::test
