#include "tools/common/nccl_conf.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "plugin/base/file.h"
#include "plugin/base/options.h"

namespace twinpath::tools {
namespace {

constexpr std::size_t kMostBytes = 1u << 20;
constexpr std::size_t kMostLine = 4095;
constexpr std::size_t kMostText = 1023;

std::string text_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string home_of_user() {
  const passwd* user = ::getpwuid(::getuid());
  return user == nullptr || user->pw_dir == nullptr ? "" : user->pw_dir;
}

bool is_there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

void take_settings(const std::string& path, NcclConf& out) {
  if (!is_there(path)) return;
  std::string why;
  const auto text = read_file(path, kMostBytes, why);
  if (!text) {
    out.notes.push_back(path + " " + why + "; its settings are not known here");
    return;
  }
  for (const auto& [name, value] : parse_nccl_conf(*text)) {
    if (const char* now = std::getenv(name.c_str())) {
      if (value != now) out.overruled.push_back({name, path, value});
      continue;
    }
    if (::setenv(name.c_str(), value.c_str(), 0) != 0) continue;
    out.origins.emplace(name, path);
  }
}

// ~/.nccl.conf as today's NCCL has it, else as earlier ones.
std::string user_file(const std::string& home, const std::string& user_home, NcclConf& out) {
  const std::string now = home.empty() ? "" : home + "/.nccl.conf";
  const std::string earlier = user_home.empty() ? "" : user_home + "/.nccl.conf";
  const bool read = !now.empty() && is_there(now);
  if (now == earlier || earlier.empty() || (!read && !is_there(earlier))) return now;
  const std::string& chosen = read ? now : earlier;
  out.notes.push_back(chosen + " is taken: NCCL up to 2.29 reads " + earlier + ", from 2.30 on " +
                      (now.empty() ? "none, for HOME is not set" : now));
  return chosen;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> parse_nccl_conf(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), kMostLine);
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), line.size() + (end < kMostLine ? 1 : 0)));
    line = line.substr(0, line.find('\0'));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::size_t equals = line.find('=');
    if (line.starts_with('#') || equals == std::string_view::npos) continue;
    out.emplace_back(line.substr(0, std::min(equals, kMostText)),
                     line.substr(equals + 1, kMostText));
  }
  return out;
}

NcclConf apply_nccl_conf(const std::string& conf_file, const std::string& home,
                         const std::string& user_home, const std::string& system_file) {
  NcclConf out;
  if (!conf_file.empty() && !is_there(conf_file))
    out.notes.push_back("NCCL_CONF_FILE=" + conf_file + " is not there; NCCL does not say so");
  take_settings(conf_file.empty() ? user_file(home, user_home, out) : conf_file, out);
  take_settings(system_file, out);
  return out;
}

const NcclConf& nccl_conf() {
  static const NcclConf conf =
      apply_nccl_conf(text_of("NCCL_CONF_FILE"), text_of("HOME"), home_of_user(), "/etc/nccl.conf");
  return conf;
}

std::vector<std::string> environment_complaints() {
  std::vector<std::string> out = nccl_conf().notes;
  for (UnreadSetting& s : unread_settings())
    if (s.mistake) out.push_back(std::move(s.text));
  return out;
}

}  // namespace twinpath::tools
