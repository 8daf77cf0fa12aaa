// What holds for each HCA: ports, GIDs, MTU, rates, SR-IOV.
#include "tools/topo/check.h"
#include "tools/topo/names.h"

namespace twinpath::tools::topo {
namespace {

std::string port_name(const Hca& h, const HcaPort& p) {
  return h.ports.size() == 1 ? h.name : h.name + ":" + std::to_string(p.number);
}

void state(const Hca& h, const HcaPort& p, Checks& out) {
  const std::string name = port_name(h, p);
  if (!p.state) {
    out.add("port-state", name, Level::unknown, "the source does not tell", "see `ibv_devinfo`");
  } else if (*p.state == PortState::active) {
    out.add("port-state", name, Level::ok, "ACTIVE");
  } else {
    // One live port of several is enough to use the HCA.
    const Level level = any_port_active(h) ? Level::warn : Level::fail;
    const bool up = *p.state == PortState::init || *p.state == PortState::armed;
    out.add("port-state", name, level, std::string(twinpath::name_of(*p.state)),
            up ? "a subnet manager must bring it to ACTIVE" : "see cable, switch and `ip link`");
  }
}

void addresses(const Hca& h, const HcaPort& p, Checks& out) {
  const std::string name = port_name(h, p);
  if (p.layer == LinkLayer::infiniband && p.lid) {
    if (*p.lid == 0)
      out.add("lid", name, Level::fail, "no LID: no subnet manager has configured the port",
              "start a subnet manager");
    else
      out.add("lid", name, Level::ok, "configured by a subnet manager");
  }
  if (h.kind == HcaKind::soft) return;  // the plugin gives it one, which "address" names
  if (!p.gids) {
    out.add("gid", name, Level::unknown, "its GID table was not readable", "see `show_gids`");
  } else if (*p.gids == 0) {
    out.add("gid", name, Level::fail, "no valid GID",
            p.layer == LinkLayer::ethernet
                ? "give its interface " + (p.netdev.empty() ? "" : p.netdev + " ") + "an address"
                : "see the subnet manager");
  } else {
    out.add("gid", name, Level::ok, "valid GIDs");
  }
}

void mtu(const Hca& h, const HcaPort& p, Checks& out) {
  const std::string name = port_name(h, p);
  if (p.layer == LinkLayer::infiniband) return;  // the subnet manager sees to it
  if (!p.layer && !p.netdev_mtu) return;
  if (!p.netdev_mtu) {
    out.add("mtu", name, Level::unknown, "the MTU of its interface was not readable",
            "`ip link`: 4200 or more carries packets of 4096 bytes");
  } else if (*p.netdev_mtu >= 4200) {
    out.add("mtu", name, Level::ok,
            std::to_string(*p.netdev_mtu) + " carries packets of 4096 bytes");
  } else {
    out.add("mtu", name, Level::warn,
            std::to_string(*p.netdev_mtu) + " limits packets to " +
                (*p.netdev_mtu >= 2200   ? "2048"
                 : *p.netdev_mtu >= 1100 ? "1024"
                                         : "512 or less") +
                " bytes",
            "`ip link set " + (p.netdev.empty() ? "DEV" : p.netdev) +
                " mtu 9000` here and on the switch");
  }
}

void rates(const Machine& m, const Hca& h, Checks& out) {
  if (!h.pci) return;
  const auto port = port_rate(h);
  const auto link = h.data_path()->link.at_most();
  if (port && link && m.host.virtual_machine != true) {
    if (*link * 8 < *port * 0.9) {
      out.add("slot-rate", h.name, Level::warn,
              "a port of " + std::to_string(*port) + " Gb/s behind a PCIe link of " +
                  number(*link * 8, 0) + " Gb/s",
              "a slot with more lanes or a newer generation");
    } else {
      out.add("slot-rate", h.name, Level::ok, "PCIe is as fast as the port");
    }
  }
  const PcieLink& l = h.pci->link;
  const bool guest = m.host.virtual_machine == true;
  if (l.degraded() && !guest) {
    out.add("link", h.name, Level::warn,
            "runs at " + generation(*l.gts) + " x" + std::to_string(*l.width) + ", can do " +
                generation(*l.max_gts) + " x" + std::to_string(*l.max_width),
            "reseat the card; see the slot and the BIOS");
  } else if (l.gts && l.max_gts) {
    out.add("link", h.name, Level::ok, guest ? "as the hypervisor shows it" : "at its full rate");
  } else {
    out.add("link", h.name, Level::unknown, "current and highest rate were not told apart",
            "see `lspci -vv`: LnkSta and LnkCap");
  }
}

// A port that came up with half its lanes, or at an older rate, says nothing of it; others of the
// same adapter or model tell.
void half_speed(const Machine& m, Checks& out) {
  const auto counts = [](const Hca& h, const HcaPort& p) {
    return h.role == HcaRole::data && h.foreign.empty() && p.gbps &&
           p.state.value_or(PortState::active) == PortState::active;
  };
  const auto alike = [](const Hca& a, const Hca& b) {
    return &a == &b || (a.pci && b.pci && a.pci->id.vendor != 0 && a.pci->id == b.pci->id &&
                        a.board == b.board);
  };
  for (const Hca& h : m.hcas) {
    for (const HcaPort& p : h.ports) {
      if (!counts(h, p)) continue;
      int most = 0;
      std::string fastest;
      for (const Hca& other : m.hcas)
        for (const HcaPort& q : other.ports)
          if (alike(h, other) && counts(other, q) && q.layer == p.layer && *q.gbps > most) {
            most = *q.gbps;
            fastest = port_name(other, q);
          }
      if (*p.gbps < most)
        out.add("port-rate", port_name(h, p), Level::warn,
                std::to_string(*p.gbps) + " Gb/s, while " + fastest + " of the same model has " +
                    std::to_string(most),
                "see cable, module and the switch's port: lanes, speed, auto-negotiation");
    }
  }
}

void virtual_functions(const Hca& h, Checks& out) {
  if (!h.pci) return;
  if (h.pci->physical_function) {
    out.add("sr-iov", h.name, Level::ok,
            "a virtual function of " + h.pci->physical_function->text());
  } else if (h.pci->virtual_functions.value_or(0) > 0) {
    out.add("sr-iov", h.name, Level::warn,
            std::to_string(*h.pci->virtual_functions) +
                " virtual functions are on: firmware often turns ACS on for them",
            "turn SR-IOV off on bare metal that does not need it");
  } else if (h.pci->virtual_functions) {
    out.add("sr-iov", h.name, Level::ok, "off");
  } else {
    out.add("sr-iov", h.name, Level::ok, "not a virtual function as far as the source tells");
  }
}

}  // namespace

void check_ports(const Report& r, Checks& out) {
  const Machine& m = r.machine;
  out.begin("network ports");
  if (m.hcas.empty()) {
    out.add("hca", "", m.has_warning("NO_PCI") ? Level::unknown : Level::fail, "no HCA found",
            "load the adapter's driver (mlx5_ib, efa); see /sys/class/infiniband");
    return;
  }
  int data = 0, foreign = 0;
  for (const Hca& h : m.hcas) {
    if (!h.foreign.empty()) {
      ++foreign;
      const Fact facts[] = {{"hca", "it"}, {"transport", h.foreign}};
      out.add("transport", h.name, Level::warn, sentence(Reason::hca_transport, facts),
              remedy(Reason::hca_transport, facts));
      continue;
    }
    if (h.role == HcaRole::management) {
      out.add("role", h.name, Level::ok, "left out, a management adapter: " + h.role_reason);
      continue;
    }
    ++data;
    for (const HcaPort& p : h.ports) {
      state(h, p, out);
      if (p.state == PortState::down) continue;  // it has no addresses then
      addresses(h, p, out);
      mtu(h, p, out);
    }
    if (h.ports.empty())
      out.add("port-state", h.name, Level::unknown, "the source does not tell its ports",
              "see `ibv_devinfo`");
    rates(m, h, out);
    virtual_functions(h, out);
  }
  half_speed(m, out);
  if (data == 0 && foreign > 0)
    out.add("hca", "", Level::fail, "no HCA speaks InfiniBand or RoCE: this version serves none",
            remedy(Reason::hca_transport, {}));
  else if (data == 0)
    out.add("hca", "", Level::fail, "all HCAs are management adapters",
            "name one in NCCL_IB_HCA if it is meant to carry data");
}

}  // namespace twinpath::tools::topo
