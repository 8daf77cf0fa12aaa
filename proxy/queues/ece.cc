#include "proxy/queues/ece.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "plugin/base/log.h"
#include "plugin/base/reason_text.h"

namespace twinpath {
namespace {

bool known(QueueSet& set) {
  const Verbs& verbs = set.devices().verbs();
  return set.devices().config().ib_ece_enable && verbs.query_ece != nullptr &&
         verbs.set_ece != nullptr;
}

QueueExtras query(QueueSet& set, Queue& q) {
  ibv_ece ece{};
  if (q.shared != nullptr) return {};  // nothing is agreed on for many
  if (set.devices().verbs().query_ece(q.qp.get(), &ece) != 0) return {};
  return {ece.vendor_id, ece.options, ece.comp_mask};
}

// 0, or an error as call_error() gives it.
int tell(QueueSet& set, Queue& q, const QueueExtras& extras) {
  if (q.shared != nullptr) return EOPNOTSUPP;
  ibv_ece ece{extras.vendor, extras.options, extras.mask};
  errno = 0;
  return call_error(set.devices().verbs().set_ece(q.qp.get(), &ece));
}

std::string refusal(const QueueSet& set, const Queue& q, const QueueExtras& agreed, int error) {
  char text[200];
  (void)std::snprintf(text, sizeof text,
                      "%s cannot use what the peer's adapter has agreed to (ECE, vendor 0x%x, "
                      "options 0x%x): %s; set NCCL_IB_ECE_ENABLE=0 on both hosts",
                      set.rails()[static_cast<std::size_t>(q.rail)].port.port->name.c_str(),
                      agreed.vendor, agreed.options, reason_text(error).c_str());
  return text;
}

bool any(const std::vector<QueueExtras>& all) {
  return std::any_of(all.begin(), all.end(), [](const QueueExtras& e) { return e.vendor != 0; });
}

std::vector<QueueExtras> or_none(std::vector<QueueExtras> all) {
  if (!any(all)) all.clear();
  return all;
}

}  // namespace

std::vector<QueueExtras> offer_extras(QueueSet& set) {
  std::vector<QueueExtras> out;
  if (!known(set)) return out;
  for (Queue& q : set.queues())
    if (q.qp != nullptr) out.push_back(query(set, q));
  return or_none(std::move(out));
}

void take_extras(QueueSet& set, const std::vector<QueueExtras>& offered) {
  if (!known(set) || offered.size() > set.queues().size()) return;
  for (std::size_t i = 0; i < offered.size(); ++i) {
    Queue& q = set.queues()[i];
    // What its adapter does not know, another vendor's above all, is no reason to part.
    if (offered[i].vendor != 0) q.extras = tell(set, q, offered[i]) == 0;
  }
}

std::vector<QueueExtras> agreed_extras(QueueSet& set, const std::vector<QueueExtras>& offered) {
  std::vector<QueueExtras> out;
  if (!known(set) || offered.empty()) return out;
  for (Queue& q : set.queues()) {
    if (q.qp == nullptr) continue;
    if (q.extras) q.agreed = query(set, q);
    out.push_back(q.agreed);
  }
  return or_none(std::move(out));
}

Status use_extras(QueueSet& set, const std::vector<QueueExtras>& agreed, std::string& why) {
  if (agreed.size() > set.queues().size()) return Status::ok;
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    Queue& q = set.queues()[i];
    if (agreed[i].vendor == 0) continue;
    const int error = known(set) ? tell(set, q, agreed[i]) : EOPNOTSUPP;
    q.extras = error == 0;
    if (q.extras) q.agreed = agreed[i];
    // mlx5 on an old kernel offers, and cannot be told; with no bit set there is nothing to tell.
    if (error == 0 || error == EOPNOTSUPP || agreed[i].options == 0) continue;
    why = refusal(set, q, agreed[i], error);
    return Status::system;
  }
  return Status::ok;
}

Status renew_extras(QueueSet& set, QueueMask& failed, std::string& why) {
  failed = 0;
  for (std::size_t i = 0; i < set.queues().size(); ++i) {
    Queue& q = set.queues()[i];
    if (q.qp == nullptr || q.agreed.vendor == 0) continue;
    const int error = tell(set, q, q.agreed);
    if (error == 0) continue;
    why = refusal(set, q, q.agreed, error);
    failed |= queue_bit(static_cast<int>(i));
  }
  return failed == 0 ? Status::ok : Status::system;
}

}  // namespace twinpath
