#include "plugin/fabric/soft/rendezvous.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>

#include "plugin/base/refused.h"
#include "plugin/base/wait_within.h"

namespace twinpath::soft {
namespace {

constexpr const char* kList = "/proc/net/unix";
constexpr std::size_t kRandomDigits = 32;
constexpr std::size_t kJobCharacters = 49;  // a job's 48, and a character that no job has
constexpr int kBacklog = 1024;
constexpr std::int64_t kReachLimit = 5 * kSecond, kClaimLimit = 2 * kSecond;

struct Address {
  sockaddr_un address{};
  socklen_t length = 0;
  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    const std::size_t n = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), n);  // leading zero byte: abstract
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

std::string random_digits() {
  std::random_device device;
  char text[kRandomDigits + 1];
  std::snprintf(text, sizeof text, "%08x%08x%08x%08x", device(), device(), device(), device());
  return text;
}

UniqueFd new_socket(int flags) {
  return UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
}

enum class Answer { ours, other_user, busy, nobody };

// Connects to a name and looks who is there.  `wait_ns`: while its backlog is full.
Answer ask(const std::string& name, std::int64_t wait_ns, UniqueFd& fd, uid_t& user) {
  fd = new_socket(0);
  const timeval limit{wait_ns / kSecond, std::max<std::int64_t>(wait_ns % kSecond / 1000, 1)};
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const Address a(name);
  if (!fd || connect(fd.get(), a.get(), a.length) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
    return error == EAGAIN || error == EINTR ? Answer::busy : Answer::nobody;
  }
  if (is_own_user(fd.get(), user)) return Answer::ours;
  fd.reset();
  return Answer::other_user;
}

}  // namespace

bool is_own_user(int socket, uid_t& user) {
  ucred who{};
  socklen_t length = sizeof who;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) return false;
  user = who.uid;
  return who.uid == geteuid();
}

Rendezvous::Rendezvous(const std::string& job, std::uint32_t slots)
    : prefix_("twinpath-" + std::to_string(getuid()) + "-" + job.substr(0, kJobCharacters) + "-"),
      slots_(slots) {}

Result<std::vector<Rendezvous::Name>> Rendezvous::names(std::string& why) const {
  const std::unique_ptr<FILE, int (*)(FILE*)> list(std::fopen(kList, "re"), std::fclose);
  if (list == nullptr) {
    const int error = errno;
    const bool wanting = error == EMFILE || error == ENFILE || error == ENOMEM;
    why = std::string(kList) + ": " +
          (wanting || is_refusal(error) ? why_no_memory(error) : std::strerror(error)) +
          (wanting ? ""
                   : "; the soft HCA finds other processes there, so /proc must be mounted and "
                     "readable");
    return Status::system;
  }
  std::vector<Name> found;
  char line[512];
  while (std::fgets(line, sizeof line, list.get()) != nullptr) {
    // Num RefCount Protocol Flags Type St Inode Path
    unsigned long flags = 0;
    int at = 0;
    if (std::sscanf(line, "%*s %*s %*s %lx %*s %*s %*s %n", &flags, &at) != 1 || at == 0) continue;
    constexpr unsigned long kListens = 1ul << 16;  // __SO_ACCEPTCON
    std::string_view name(line + at);
    if ((flags & kListens) == 0 || !name.starts_with('@')) continue;
    name.remove_prefix(1);
    if (name.ends_with('\n')) name.remove_suffix(1);
    if (!name.starts_with(prefix_)) continue;
    const std::string_view rest = name.substr(prefix_.size());
    Name n{std::string(name), 0};
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), n.slot);
    const auto digits = static_cast<std::size_t>(rest.data() + rest.size() - end);
    if (error != std::errc() || n.slot >= slots_ || digits != kRandomDigits + 1 || *end != '-')
      continue;
    found.push_back(std::move(n));
  }
  return found;
}

bool Rendezvous::is_taken(std::uint32_t slot, const std::vector<Name>& names,
                          const std::string& own, bool trusting) const {
  RunLimit limit(kClaimLimit);
  return std::any_of(names.begin(), names.end(), [&](const Name& n) {
    if (n.slot != slot || n.text == own || limit.over(now_ns())) return false;
    UniqueFd fd;
    uid_t user = 0;
    const Answer a = ask(n.text, (trusting ? 1 : 20) * kMillisecond, fd, user);
    return a == Answer::ours || (trusting && a == Answer::busy);
  });
}

Result<UniqueFd> Rendezvous::claim(std::uint32_t& slot, std::string& why) const {
  // Start at a place that depends on the pid: neighbours seldom collide, and a number of a dead
  // process is not soon used again.
  const std::uint32_t start = static_cast<std::uint32_t>(getpid()) * 2654435761u;
  auto known = names(why);
  if (!known) return known.status();
  std::vector<bool> named(slots_, false);
  for (const Name& n : *known) named[n.slot] = true;
  // First the slots that nobody names, then those that only other users do.  Who is too busy to
  // answer may be ours; only when nothing else is left is he taken for a stranger who obstructs.
  RunLimit limit(kClaimLimit);
  for (std::uint32_t i = 0; i < 3 * slots_; ++i) {
    const std::uint32_t candidate = (start + i) % slots_;
    const bool trusting = i < 2 * slots_;
    if (named[candidate] != (i >= slots_)) continue;
    if (named[candidate] && trusting && limit.over(now_ns())) continue;
    if (named[candidate] && is_taken(candidate, *known, "", trusting)) continue;
    UniqueFd fd = new_socket(SOCK_NONBLOCK);
    const std::string own = prefix_ + std::to_string(candidate) + "-" + random_digits();
    const Address a(own);
    if (!fd || bind(fd.get(), a.get(), a.length) != 0 || listen(fd.get(), kBacklog) != 0) {
      why = "making the rendezvous socket: " + why_no_memory(errno);
      return Status::system;
    }
    // Another process may have taken the same slot since we looked: whoever sees the other gives
    // way.  Both listen before they look, so one of the two sees it.
    auto now = names(why);
    if (!now) return now.status();
    if (is_taken(candidate, *now, own, trusting)) continue;
    slot = candidate;
    return fd;
  }
  why = std::to_string(slots_) +
        " processes of this user and job already use the soft HCA on this host; give jobs their "
        "own TWINPATH_SOFT_JOB";
  return Status::system;
}

Result<UniqueFd> Rendezvous::reach(std::uint32_t slot, std::string& why) const {
  auto known = names(why);
  if (!known) return known.status();
  std::erase_if(*known, [slot](const Name& n) { return n.slot != slot; });
  why = "it has ended or runs elsewhere";
  Status outcome = Status::closed;
  RunLimit limit(kReachLimit);
  // Each is asked shortly and those that are busy once more, so that names of others cost little.
  for (std::int64_t wait = kMillisecond; !known->empty() && !limit.over(now_ns()); wait *= 4) {
    std::vector<Name> busy;
    for (Name& n : *known) {
      UniqueFd fd;
      uid_t user = 0;
      const Answer a = ask(n.text, std::min(wait, kSecond), fd, user);
      if (a == Answer::ours) return fd;
      if (a == Answer::busy) busy.push_back(std::move(n));
      if (a == Answer::other_user) {
        outcome = Status::remote;
        why = "its name is held by a process of user id " + std::to_string(user) +
              ", which is not trusted; the process of that name has ended";
      }
      if (a == Answer::nobody && (errno == EMFILE || errno == ENFILE || is_refusal(errno))) {
        why = why_no_memory(errno);
        return Status::system;
      }
    }
    *known = std::move(busy);
  }
  if (known->empty()) return outcome;
  why = "it takes no connections, its backlog is full";
  return Status::remote;
}

}  // namespace twinpath::soft
