#pragma once
// Adds to the process's environment while other threads may read it.
#include <span>

#include "plugin/nccl/tuning.h"

namespace twinpath {

// setenv() is no way: it may move the array of entries and free the old one under a thread that is
// inside getenv() (PyTorch has such threads; glibc promises it from 2.41 on only).  A new array
// takes the old one's place, and the old one stays for ever.
//
// Entries of the same name that are empty go; one that has a value by now is left and wins.
// Names and values must be constants of the program.  False: other threads changed the environment
// each time, nothing was done.
//
// Threads: any number that read the environment; calls of this function one at a time.  Threads
// that write it (setenv) are as safe beside this as they are beside getenv, which is not at all
// where they make an array grow; what one wrote in place meanwhile is found and kept.
bool add_to_environment(std::span<const Setting> settings);

}  // namespace twinpath
