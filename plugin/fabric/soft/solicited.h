#pragma once
// How a completion tells that its message asked for an event (IBV_SEND_SOLICITED), which no verb
// does: the adapters' models write completion queues of their own, and must know.
#include <cstdint>

namespace twinpath::soft {

// In ibv_wc::vendor_err of a receive without an error, where programs have nothing to look for.
inline constexpr std::uint32_t kWasSolicited = 1;

}  // namespace twinpath::soft
