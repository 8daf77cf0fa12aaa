#include "test/abi/fake_caller.h"

extern "C" {

int fake_nccl_version = 0;

int ncclGetVersion(int* version) {
  *version = fake_nccl_version;
  return 0;
}

static void ignore(twinpath::LogLevel, unsigned long, const char*, int, const char*, ...) {}

const twinpath::LogSink fake_nccl_log = ignore;
}
