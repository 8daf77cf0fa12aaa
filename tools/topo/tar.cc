#include "tools/topo/tar.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "plugin/base/file.h"
#include "tools/common/failure.h"
#include "tools/common/output.h"

namespace twinpath::tools::topo {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlock = 512;
constexpr std::size_t kNameBytes = 100;
constexpr std::size_t kMostBytes = std::size_t{256} << 20;
constexpr std::size_t kMostEntries = 200000;

using Header = std::array<char, kBlock>;

void put_octal(Header& h, std::size_t at, std::size_t digits, std::size_t value) {
  for (std::size_t i = digits; i-- > 0; value >>= 3)
    h[at + i] = static_cast<char>('0' + (value & 7));
}

// The sum over the header with the sum's own field blank.
unsigned checksum(const Header& h) {
  unsigned sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i)
    sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(h[i]);
  return sum;
}

void put(std::string& out, char type, const std::string& name, const std::string& target,
         const std::string& data) {
  Header h{};
  std::copy_n(name.begin(), std::min(name.size(), kNameBytes), h.begin());
  put_octal(h, 100, 7, type == '5' ? 0755 : 0644);
  put_octal(h, 108, 7, 0);
  put_octal(h, 116, 7, 0);
  put_octal(h, 124, 11, data.size());
  put_octal(h, 136, 11, 0);
  h[156] = type;
  std::copy_n(target.begin(), std::min(target.size(), kNameBytes), h.begin() + 157);
  std::memcpy(h.data() + 257,
              "ustar\0"
              "00",
              8);
  put_octal(h, 148, 6, checksum(h));
  h[155] = ' ';
  out.append(h.data(), kBlock);
  out += data;
  out.append((kBlock - data.size() % kBlock) % kBlock, '\0');
}

std::string field(const char* at, std::size_t most) { return std::string(at, strnlen(at, most)); }

std::optional<std::size_t> octal(const char* at, std::size_t digits) {
  std::size_t v = 0;
  for (std::size_t i = 0; i < digits && at[i] != '\0' && at[i] != ' '; ++i) {
    if (at[i] < '0' || at[i] > '7') return std::nullopt;
    v = v << 3 | static_cast<std::size_t>(at[i] - '0');
  }
  return v;
}

// The value of "LENGTH key=value\n" in a pax record; empty when it is not there.
std::string pax_value(const std::string& data, const std::string& key) {
  const std::size_t at = data.find(" " + key + "=");
  if (at == std::string::npos) return {};
  const std::size_t begin = at + key.size() + 2;
  return data.substr(begin, data.find('\n', begin) - begin);
}

std::string relative(std::string path) {
  while (path.starts_with("./")) path.erase(0, 2);
  while (!path.empty() && path.back() == '/') path.pop_back();
  return path;
}

// Whether a relative path stays below where it starts.
bool stays_inside(const fs::path& path) {
  if (path.is_absolute()) return false;
  const fs::path normal = path.lexically_normal();
  return !normal.empty() && *normal.begin() != "..";
}

}  // namespace

bool looks_like_tar(const std::string& path) {
  std::string why;
  const auto head = read_head(path, kBlock, why);
  return head && head->size() == kBlock && head->compare(257, 5, "ustar") == 0;
}

void write_tar(const std::string& path, const std::vector<TarEntry>& entries) {
  std::string out;
  for (const TarEntry& e : entries) {
    if (e.path.size() > kNameBytes) put(out, 'L', "././@LongLink", "", e.path + '\0');
    if (e.target.size() > kNameBytes) put(out, 'K', "././@LongLink", "", e.target + '\0');
    const char type = e.kind == TarEntry::Kind::link     ? '2'
                      : e.kind == TarEntry::Kind::folder ? '5'
                                                         : '0';
    put(out, type, e.path, e.target, e.data);
  }
  out.append(2 * kBlock, '\0');
  if (const int error = write_output(path, out); error != 0)
    throw Failure(path + ": cannot be written: " + std::strerror(error));
}

std::vector<TarEntry> read_tar(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Failure(path + ": cannot be opened: " + std::strerror(errno));
  std::vector<TarEntry> out;
  std::string long_name, long_target;
  std::size_t total = 0;
  Header h{};
  while (in.read(h.data(), kBlock)) {
    if (std::all_of(h.begin(), h.end(), [](char c) { return c == '\0'; })) return out;
    const auto size = octal(h.data() + 124, 12);
    const auto sum = octal(h.data() + 148, 8);
    if (!size || !sum || *sum != checksum(h))
      throw Failure(path + ": damaged archive (bad header after " + std::to_string(out.size()) +
                    " entries); copy it again");
    total += *size;
    if (total > kMostBytes || out.size() >= kMostEntries)
      throw Failure(path + ": too large for a dump of a machine");
    std::string data(*size, '\0');
    in.read(data.data(), static_cast<std::streamsize>(*size));
    if (!in) break;
    in.ignore(static_cast<std::streamsize>((kBlock - *size % kBlock) % kBlock));
    const char type = h[156];
    if (type == 'L' || type == 'K') {
      (type == 'L' ? long_name : long_target) = field(data.data(), data.size());
      continue;
    }
    if (type == 'x') {
      long_name = pax_value(data, "path");
      long_target = pax_value(data, "linkpath");
      continue;
    }
    const std::string prefix = h[262] == '\0' ? field(h.data() + 345, 155) : "";
    std::string name = field(h.data(), kNameBytes);
    if (!prefix.empty()) name = prefix + "/" + name;
    TarEntry e;
    e.path = relative(long_name.empty() ? name : long_name);
    e.target = long_target.empty() ? field(h.data() + 157, kNameBytes) : long_target;
    long_name.clear();
    long_target.clear();
    if (type == '0' || type == '\0')
      e.data = std::move(data);
    else if (type == '2')
      e.kind = TarEntry::Kind::link;
    else if (type == '5')
      e.kind = TarEntry::Kind::folder;
    else
      continue;
    if (!e.path.empty()) out.push_back(std::move(e));
  }
  throw Failure(path + ": cut off after " + std::to_string(out.size()) + " entries; copy it again");
}

void unpack(const std::vector<TarEntry>& entries, const std::string& folder) {
  const fs::path root(folder);
  std::error_code error;
  // Links last: no file may be written through one.
  for (const TarEntry& e : entries) {
    if (e.kind == TarEntry::Kind::link || !stays_inside(e.path)) continue;
    const fs::path at = root / e.path;
    fs::create_directories(e.kind == TarEntry::Kind::folder ? at : at.parent_path(), error);
    if (e.kind == TarEntry::Kind::folder) continue;
    std::ofstream file(at, std::ios::binary);
    file.write(e.data.data(), static_cast<std::streamsize>(e.data.size()));
    if (!file) throw Failure(at.string() + ": cannot be written: " + std::strerror(errno));
  }
  for (const TarEntry& e : entries) {
    if (e.kind != TarEntry::Kind::link || !stays_inside(e.path)) continue;
    if (!stays_inside(fs::path(e.path).parent_path() / e.target)) continue;
    const fs::path at = root / e.path;
    // Where the way to it passes a link made before, leave it.
    const fs::path parent = fs::weakly_canonical(at.parent_path(), error);
    if (error || !stays_inside(fs::relative(parent, fs::canonical(root, error), error) / "x"))
      continue;
    fs::create_directories(at.parent_path(), error);
    fs::create_symlink(e.target, at, error);
  }
}

}  // namespace twinpath::tools::topo
