#pragma once
// Stands in for an NCCL that calls the plugin: a library with a logger and a version.
#include "plugin/base/log.h"

extern "C" {
extern int fake_nccl_version;  // what its ncclGetVersion says
extern const twinpath::LogSink fake_nccl_log;
}
