#pragma once
// Ctrl-C and SIGTERM as something that a loop can look at: what was measured until then is printed
// before the program ends, by the signal, as if it had not been caught.
#include <csignal>
#include <string>

#include "plugin/base/owned.h"

namespace twinpath::tools {

// While one exists the two signals wait, in this thread and in those that it starts.
class Interrupts {
 public:
  Interrupts();   // throws Failure
  ~Interrupts();  // what still waits arrives now
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  int fd() const { return fd_.get(); }  // readable when one waits
  int take();                           // that one; 0: none

 private:
  UniqueFd fd_;
  sigset_t before_{};
};

// "interrupted (SIGINT)"
std::string interrupt_text(int signal);
// Between fork and exec of a worker: Ctrl-C reaches it too, and is its parent's to answer.
void leave_interrupts_to_parent();
// Ends this process as the signal would have.
[[noreturn]] void end_by(int signal);

}  // namespace twinpath::tools
