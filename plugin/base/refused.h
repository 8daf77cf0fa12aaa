#pragma once
// What a system call that failed for want of something means to whoever reads the log: the cause
// as errno tells it, and the remedy.  For calls that need no privilege: EPERM, EACCES and ENOSYS
// are then a security profile's (seccomp) answers, which old container runtimes give to any call
// that they do not know.
//
// Threads: any.
#include <string>

namespace twinpath {

// Whether a call that needs no privilege failed because a security profile refuses it.
bool is_refusal(int error);
// Threads: pthread_create, clone3.
std::string why_no_thread(int error);
// Memory and descriptors: memfd_create, ftruncate, fallocate, mmap, eventfd, epoll_create1, and the
// sockets between processes of a host.
std::string why_no_memory(int error);
// Descriptors to be told of: epoll_ctl.
std::string why_not_watched(int error);
// The control network: socket, bind, listen, accept, connect, send, recv and their like, of which
// firewalls refuse some, too.  `otherwise`: what helps against any other error, "" nothing.
std::string why_no_network(int error, const char* otherwise);
// What may be raised where memory is refused: the limit of address space or of data, as far as
// there is one; "" without.
std::string limits_of_memory();

}  // namespace twinpath
