#pragma once
// Settings that NCCL takes from files: before it opens a plugin it puts the lines of
// NCCL_CONF_FILE, else of ~/.nccl.conf, and then those of /etc/nccl.conf into its environment,
// where nothing stands yet (NCCL's src/misc/param.cc; up to 2.29 ~ is the home folder of the user
// database, from 2.30 on $HOME).  So they hold for the plugin, too, and a tool that says what a job
// will do reads them.
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace twinpath::tools {

// Lines NAME=VALUE as NCCL takes them: cut at 1023 bytes, '#' only in front of a comment, blanks
// part of name and value.
std::vector<std::pair<std::string, std::string>> parse_nccl_conf(std::string_view text);

// A line of a file that does not count: the environment, or a file before it, says otherwise.
struct OverruledSetting {
  std::string name, file, value;
};

struct NcclConf {
  std::map<std::string, std::string> origins;  // of names that a file set: the file
  std::vector<OverruledSetting> overruled;
  std::vector<std::string> notes;  // a file that cannot be read, or that not all read
};

// `home` and `user_home`: $HOME and the user database's; empty where there is none.  Puts into the
// environment what a job finds there.
NcclConf apply_nccl_conf(const std::string& conf_file, const std::string& home,
                         const std::string& user_home, const std::string& system_file);

// The same with this process's, by the first call.  Threads: the first call before there are
// others.
const NcclConf& nccl_conf();

// What a job would complain of in the environment: names that nobody reads, and the files' notes.
std::vector<std::string> environment_complaints();

}  // namespace twinpath::tools
