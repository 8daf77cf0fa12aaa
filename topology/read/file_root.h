#pragma once
// Files below a root folder: "/" for this machine, another folder for a captured one.  Bounded
// reads, no errors: what cannot be read is an empty optional.  Links are followed inside the root
// only.
//
// Threads: plain value.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace twinpath {

class FileRoot {
 public:
  explicit FileRoot(const std::string& root);
  // Whether the root folder exists.
  bool exists() const { return exists_; }
  // All paths begin with "/" and are meant below the root.
  bool has(const std::string& path) const;
  // Contents without surrounding blanks; at most 256 KiB.
  std::optional<std::string> text(const std::string& path) const;
  std::optional<std::vector<std::uint8_t>> bytes(const std::string& path, std::size_t most) const;
  // As text(), a decimal or 0x number.
  std::optional<long> number(const std::string& path) const;
  // Names in a folder in alphabetical order, at most 65536; nullopt when it cannot be read.
  std::optional<std::vector<std::string>> list(const std::string& path) const;
  // The path with all links followed, below the root.
  std::optional<std::string> real(const std::string& path) const;
  // Last component of what a link points to, whether or not that exists.
  std::optional<std::string> link_name(const std::string& path) const;

 private:
  std::string root_;  // without trailing slash; empty for "/"
  bool exists_ = false;
};

}  // namespace twinpath
