#pragma once
// Which of NCCL's settings are chosen for the user on the soft HCA (TWINPATH_TUNE): a plain
// function of what was configured.  environment.h puts them where NCCL reads them.
//
// Every rank must choose alike, as with NCCL's variables in general: NCCL computes channels and
// buffer sizes on each rank by itself, and ranks that differ hang.  So nothing is asked of the
// machine here (its GPUs, say, of which one rank may see fewer): only settings, which the ranks of
// a job share.
#include <functional>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/options.h"

namespace twinpath {

struct Setting {
  const char* name;
  std::string value;
};

struct Tuning {
  std::vector<Setting> settings;
  std::vector<std::string> kept;  // "NAME=value" of the user's that stand in the way of one

  // Whether NCCL_NET_GDR_LEVEL is among the settings; the value, else null.
  const char* gdr_level() const;
};

// Nothing unless the fabric is the soft HCA and TWINPATH_TUNE=auto.  `user` looks up NCCL's
// variables; an empty one counts as not set.  `find_tuner` gives the path of our tuner library
// (plugin/nccl/tuner), empty where there is none; asked only where it would be used.
Tuning choose_tuning(const Config& config, const EnvLookup& user,
                     const std::function<std::string()>& find_tuner);

// The tuner library in `folder`, or empty and a warning: ranks that have it and ranks that do not
// would choose differently, and hang.
std::string find_tuner(const std::string& folder);

// Puts the settings into the environment and says so in one line (INFO).  Called once a process,
// under the Context's lock.
void apply_tuning(const Tuning& tuning);

}  // namespace twinpath
