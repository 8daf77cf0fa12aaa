#include "tools/softhca/pci/trace.h"

#include <cerrno>
#include <cstring>

#include "plugin/fabric/soft/mlx5/layout.h"

namespace twinpath::softhca::pci {
namespace {

std::string hex(Bytes bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Long answers end in zeros, which say nothing.
Bytes without_zeros(Bytes bytes) {
  while (!bytes.empty() && bytes.back() == 0) bytes = bytes.first(bytes.size() - 1);
  return bytes;
}

}  // namespace

bool Trace::open(const std::string& path) {
  if (path.empty()) return true;
  file_.reset(std::fopen(path.c_str(), "we"));
  if (file_ == nullptr)
    std::fprintf(stderr, "softhca: --trace %s: %s\n", path.c_str(), std::strerror(errno));
  return file_ != nullptr;
}

void Trace::command(unsigned function, Bytes in, Bytes out, const Outcome& outcome) {
  const auto number = static_cast<unsigned>(mlx5::get(in, mlx5::kOpcode));
  const auto opcode = static_cast<mlx5::Opcode>(number);
  const char* const name = mlx5::name_of(opcode);
  const bool refused = outcome.refusal != mlx5::Refusal::none;
  if (refused && said_.emplace(number, outcome.refusal).second) {
    std::fprintf(stderr, "softhca: function %u: command %s (0x%x) was refused: %s", function,
                 name == nullptr ? "of no name" : name, number, mlx5::text_of(outcome.refusal));
    if (outcome.refusal == mlx5::Refusal::reserved)
      std::fprintf(stderr, " (bit 0x%x)", outcome.reserved_bit);
    std::fputc('\n', stderr);
  }
  if (file_ == nullptr) return;
  const Layout* const layout = layout_of(opcode);
  std::fprintf(file_.get(),
               "{\"n\":%llu,\"function\":%u,\"command\":\"%s\",\"opcode\":%u,\"op_mod\":%u,"
               "\"uid\":%u,\"in_bytes\":%zu,\"out_bytes\":%zu,\"fields\":{%s},\"status\":%u,"
               "\"out\":\"%s\"",
               ++lines_, function, name == nullptr ? "" : name, number,
               static_cast<unsigned>(mlx5::get(in, mlx5::kOpMod)),
               static_cast<unsigned>(mlx5::get(in, mlx5::kUid)), in.size(), out.size(),
               layout == nullptr ? "" : show_fields(*layout, in).c_str(),
               static_cast<unsigned>(mlx5::get(out, mlx5::kStatus)),
               hex(without_zeros(out)).c_str());
  if (refused)
    std::fprintf(file_.get(), ",\"refused\":\"%s\",\"in\":\"%s\"", mlx5::text_of(outcome.refusal),
                 hex(without_zeros(in)).c_str());
  std::fputs("}\n", file_.get());
  (void)std::fflush(file_.get());
}

void Trace::event(unsigned function, const char* what) {
  if (file_ == nullptr) return;
  std::fprintf(file_.get(), "{\"n\":%llu,\"function\":%u,\"event\":\"%s\"}\n", ++lines_, function,
               what);
  (void)std::fflush(file_.get());
}

}  // namespace twinpath::softhca::pci
