#include "topology/read/file_root.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <memory>

#include "plugin/base/owned.h"

namespace twinpath {
namespace {

constexpr std::size_t kLargestText = 256 * 1024;
constexpr std::size_t kMostNames = 65536;

std::optional<std::string> canonical(const std::string& path) {
  char real[PATH_MAX];
  if (::realpath(path.c_str(), real) == nullptr) return std::nullopt;
  return std::string(real);
}

}  // namespace

FileRoot::FileRoot(const std::string& root) {
  const auto real = canonical(root);
  struct stat status {};
  exists_ = real && ::stat(real->c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  root_ = real && *real != "/" ? *real : std::string();
}

std::optional<std::string> FileRoot::real(const std::string& path) const {
  if (!exists_) return std::nullopt;
  auto real = canonical(root_ + path);
  if (!real || real->compare(0, root_.size(), root_) != 0) return std::nullopt;
  if (real->size() > root_.size() && (*real)[root_.size()] != '/') return std::nullopt;
  return real->substr(root_.size());
}

bool FileRoot::has(const std::string& path) const { return real(path).has_value(); }

std::optional<std::vector<std::uint8_t>> FileRoot::bytes(const std::string& path,
                                                         std::size_t most) const {
  const auto inside = real(path);
  if (!inside) return std::nullopt;
  const UniqueFd fd(::open((root_ + *inside).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return std::nullopt;
  std::vector<std::uint8_t> out;
  while (out.size() < most) {
    std::uint8_t part[4096];
    const std::size_t want = std::min(sizeof part, most - out.size());
    const ssize_t n = ::read(fd.get(), part, want);
    // Some attributes give an error half-way (configuration space without privilege): what came
    // before counts.
    if (n <= 0) {
      if (n < 0 && out.empty()) return std::nullopt;
      break;
    }
    out.insert(out.end(), part, part + n);
  }
  return out;
}

std::optional<std::string> FileRoot::text(const std::string& path) const {
  const auto raw = bytes(path, kLargestText);
  if (!raw) return std::nullopt;
  const std::string all(raw->begin(), raw->end());
  const std::size_t first = all.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return std::string();
  return all.substr(first, all.find_last_not_of(" \t\r\n") - first + 1);
}

std::optional<long> FileRoot::number(const std::string& path) const {
  const auto t = text(path);
  if (!t || t->empty()) return std::nullopt;
  char* end = nullptr;
  const long v = std::strtol(t->c_str(), &end, 0);
  if (end == t->c_str() || *end != '\0') return std::nullopt;
  return v;
}

std::optional<std::vector<std::string>> FileRoot::list(const std::string& path) const {
  const auto inside = real(path);
  if (!inside) return std::nullopt;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir((root_ + *inside).c_str()),
                                                   &::closedir);
  if (!folder) return std::nullopt;
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (names.size() == kMostNames) break;
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::string> FileRoot::link_name(const std::string& path) const {
  char target[PATH_MAX];
  const ssize_t n = ::readlink((root_ + path).c_str(), target, sizeof target);
  if (n <= 0) return std::nullopt;
  const std::string all(target, static_cast<std::size_t>(n));
  const std::size_t slash = all.rfind('/');
  return slash == std::string::npos ? all : all.substr(slash + 1);
}

}  // namespace twinpath
