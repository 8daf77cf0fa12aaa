#pragma once
// GID tables that a test moves about: what an adapter has at index kOwn stands where `places` says.
// As a kernel does, it raises no queue pair with an index at which nothing stands.
//
// Threads: on() before others use the fabric; then any, under `mutex`.
#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string>
#include <vector>

#include "plugin/fabric/fabric.h"

namespace twinpath::test {

struct MovingGids {
  static constexpr int kEntries = 8, kOwn = 1;
  static inline std::mutex mutex;
  static inline std::vector<int> places;
  static inline ibv_mtu mtu = IBV_MTU_4096;
  static inline std::vector<ibv_qp_attr> raised;
  static inline int gid_queries = 0;

  // `only`: of that adapter; else of all.
  static void on(Fabric& fabric, const std::string& only = {}) {
    places = {0};
    mtu = IBV_MTU_4096;
    raised.clear();
    only_ = only;
    real_ = fabric.verbs;
    fabric.verbs.query_gid = query_gid;
    fabric.verbs.query_port = query_port;
    fabric.verbs.modify_qp = modify_qp;
  }
  static void put(std::vector<int> at) {
    const std::lock_guard hold(mutex);
    places = std::move(at);
  }
  static std::vector<int> indices_raised() {
    const std::lock_guard hold(mutex);
    std::vector<int> all;
    for (const ibv_qp_attr& a : raised) all.push_back(a.ah_attr.grh.sgid_index);
    return all;
  }

 private:
  static bool moves(const ibv_context* c) { return only_.empty() || only_ == c->device->name; }
  static bool stands(int index) {
    return std::find(places.begin(), places.end(), index) != places.end();
  }
  static int query_gid(ibv_context* c, std::uint8_t port, int index, ibv_gid* gid) {
    if (!moves(c)) return real_.query_gid(c, port, index, gid);
    *gid = {};
    {
      const std::lock_guard hold(mutex);
      ++gid_queries;
      if (!stands(index)) return 0;
    }
    return real_.query_gid(c, port, kOwn, gid);
  }
  static int query_port(ibv_context* c, std::uint8_t port, ibv_port_attr* attr) {
    const int error = real_.query_port(c, port, attr);
    if (!moves(c)) return error;
    attr->gid_tbl_len = kEntries;
    attr->active_mtu = mtu;
    return error;
  }
  static int modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
    if ((mask & IBV_QP_AV) == 0 || !moves(qp->context)) return real_.modify_qp(qp, attr, mask);
    ibv_qp_attr own = *attr;
    {
      const std::lock_guard hold(mutex);
      raised.push_back(own);
      if (!stands(own.ah_attr.grh.sgid_index)) return ENODATA;
    }
    own.ah_attr.grh.sgid_index = kOwn;
    return real_.modify_qp(qp, &own, mask);
  }

  static inline Verbs real_;
  static inline std::string only_;
};

}  // namespace twinpath::test
