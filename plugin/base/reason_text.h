#pragma once
// Why a call failed, for messages.
#include <string>

namespace twinpath {

// "Cannot allocate memory (errno 12)".  0, or what is no errno value: "the provider gave no
// reason"; some of libibverbs' providers (bnxt_re, cxgb4) return null and leave errno alone.  So
// whoever reads errno behind such a call clears it before: what an earlier call left there is no
// reason.
std::string reason_text(int error);

}  // namespace twinpath
