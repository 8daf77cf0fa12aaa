#pragma once
// What the fault cases do to the virtual machine's network, and how they find out that it was
// really done: netem by tc, links and MTUs by ioctl (an exec costs 50 ms in there), the counters
// of tc and of the soft-RoCE driver.
//
// Needs root in a machine laid out by the VM script.  Every change is an object that takes it back.
// Threads: one, the parent of the two ends.
#include <cstdint>
#include <string>
#include <vector>

namespace twinpath::test {

void rest_ms(int ms);

// Runs a program to its end, at most 10 s; its output when it left with 0, else false.
bool run_program(const std::vector<std::string>& args, std::string* output = nullptr);

// Up, with the routes and neighbours that "down" or a removed address cost (a script of the VM).
bool restore_link(const std::string& device);

// netem on what one device sends.
class Netem {
 public:
  Netem(std::string device, const std::string& rule);  // "loss 1%"
  ~Netem();
  Netem(const Netem&) = delete;
  Netem& operator=(const Netem&) = delete;
  bool ok() const { return ok_; }
  void change(const std::string& rule);
  long dropped() const;  // packets, by tc's own counter; -1 when it cannot be read

 private:
  std::string device_;
  bool ok_ = false;
};

// Drops the packets of one BTH opcode that a device sends (an acknowledgement is 0x11).
class OpcodeFilter {
 public:
  OpcodeFilter(std::string device, int opcode);
  ~OpcodeFilter();
  OpcodeFilter(const OpcodeFilter&) = delete;
  OpcodeFilter& operator=(const OpcodeFilter&) = delete;
  bool ok() const { return ok_; }
  long dropped() const;

 private:
  std::string device_;
  bool ok_ = false;
};

// Nothing passes over a device in either direction, and it looks well all the same.
class Cut {
 public:
  explicit Cut(std::string device);
  ~Cut() { mend(); }
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;
  bool ok() const { return ok_; }
  // Sends a datagram to `address` and says whether it was dropped.
  bool felt(const std::string& address) const;
  void mend();

 private:
  std::string device_;
  bool ok_ = false;
  bool cut_;  // until all of it is known to be gone
};

// Takes a device down; up again with the routes and neighbours that this cost.
class LinkDown {
 public:
  explicit LinkDown(std::string device);
  ~LinkDown() { up(); }
  LinkDown(const LinkDown&) = delete;
  LinkDown& operator=(const LinkDown&) = delete;
  bool ok() const { return ok_; }
  void up();

 private:
  std::string device_;
  bool ok_ = false;
  bool down_ = false;
};

class Mtu {
 public:
  Mtu(std::string device, int mtu);
  ~Mtu();
  Mtu(const Mtu&) = delete;
  Mtu& operator=(const Mtu&) = delete;
  bool ok() const { return ok_; }

 private:
  std::string device_;
  int before_ = 0;
  bool ok_ = false;
};

// A counter of the driver (hw_counters in sysfs), summed over devices, since this was made.
class Counter {
 public:
  Counter(std::vector<std::string> devices, std::string name);
  long long grown() const { return now() - before_; }
  const std::string& name() const { return name_; }

 private:
  long long now() const;
  std::vector<std::string> devices_;
  std::string name_;
  long long before_ = 0;
};

// Whether a datagram to a port of `address` where nobody listens is refused by its host within the
// limit: the link carries packets in both directions.
bool link_carries(const std::string& address, int limit_ms);

bool port_is_active(const std::string& rdma_device);
// Until all are, 5 s at most.
bool wait_ports_active(const std::vector<std::string>& rdma_devices);

}  // namespace twinpath::test
