// Limits of resources and system calls that a profile refuses, from each point of a life on.  What
// is optional is gone without, what is needed is one error that names the remedy; nothing hangs,
// dies or is left.
//
// TWINPATH_TEST_PLUGIN names the library.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cerrno>
#include <deque>

#include "test/abi/whole_life.h"
#include "test/support/refuse.h"

namespace twinpath::test {
namespace {

bool limit(decltype(RLIMIT_AS) what, rlim_t value) {
  const rlimit all{value, value};
  return ::setrlimit(what, &all) == 0;
}
// So many descriptors more than there are, whose numbers have no holes.
std::function<bool()> descriptors(int more) {
  return [more] {
    int first_free = 0;
    while (::fcntl(first_free, F_GETFD) >= 0) ++first_free;
    return limit(RLIMIT_NOFILE, static_cast<rlim_t>(first_free + more));
  };
}
std::function<bool()> address_space(long kib) {
  return [kib] {
    long pages = 0;
    std::FILE* f = std::fopen("/proc/self/statm", "r");
    if (f == nullptr || std::fscanf(f, "%ld", &pages) != 1) return false;
    (void)std::fclose(f);
    return limit(RLIMIT_AS, static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + kib * 1024));
  };
}
// Of a user that has no other process, as root is not limited.  The user may read every file, so
// that the plugin is found below folders of root's.
bool no_more_threads() {
  if (::geteuid() == 0) {
    if (::prctl(PR_SET_KEEPCAPS, 1) != 0 || ::setuid(61'234) != 0) return false;
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct caps[2] = {};
    caps[0].effective = caps[0].permitted = 1u << CAP_DAC_READ_SEARCH;
    if (::syscall(SYS_capset, &header, caps) != 0) return false;
  }
  return limit(RLIMIT_NPROC, 0);
}

std::vector<Row> limits() {
  std::vector<Row> rows;
  for (int more = 0; more < 14; ++more)
    rows.push_back({"descriptors at init: " + std::to_string(more), Stage::init, descriptors(more),
                    "ulimit -n", more < 3});
  for (int more = 0; more < 4; ++more)
    rows.push_back({"descriptors at connect: " + std::to_string(more), Stage::connect,
                    descriptors(more), "ulimit -n", more < 2});
  for (const Stage at : {Stage::memory, Stage::traffic, Stage::gin, Stage::close})
    rows.push_back({"no descriptors later", at, descriptors(0), "ulimit -n"});
  for (const long kib : {0, 1000, 4000})
    rows.push_back({"address space at init: " + std::to_string(kib), Stage::init,
                    address_space(kib), "ulimit -v", true});
  rows.push_back({"no address space at the end", Stage::close, address_space(0), "ulimit -v"});
  for (const Stage at : kStages) {
    rows.push_back({"no threads", at, no_more_threads, "ulimit -u", at == Stage::init});
    rows.push_back({"no locked memory", at, [] { return limit(RLIMIT_MEMLOCK, 0); }, ""});
    rows.push_back(
        {"empty files", at, [] { return limit(RLIMIT_FSIZE, 0); }, "ulimit -f", at == Stage::init});
  }
  rows.push_back({"files of 1 MB", Stage::init, [] { return limit(RLIMIT_FSIZE, 1'000'000); },
                  "ulimit -f", true});
  rows.push_back(
      {"files of 4 MB", Stage::init, [] { return limit(RLIMIT_FSIZE, 4'000'000); }, "ulimit -f"});
  return rows;
}

std::vector<Row> refusals() {
  struct Call {
    const char* name;
    unsigned number;
  };
#define CALL(name) \
  { #name, SYS_##name }
  constexpr Call kCalls[] = {CALL(accept4),
                             CALL(bind),
                             CALL(clone3),
                             CALL(clock_nanosleep),
                             CALL(connect),
                             CALL(epoll_create1),
                             CALL(epoll_ctl),
                             CALL(epoll_pwait2),
                             CALL(eventfd2),
                             CALL(faccessat2),
                             CALL(fallocate),
                             CALL(fcntl),
                             CALL(fstatfs),
                             CALL(ftruncate),
                             CALL(getdents64),
                             CALL(getrandom),
                             CALL(getsockname),
                             CALL(getsockopt),
                             CALL(ioctl),
                             CALL(kcmp),
                             CALL(listen),
                             CALL(madvise),
                             CALL(membarrier),
                             CALL(memfd_create),
                             CALL(mmap),
                             CALL(mprotect),
                             CALL(msync),
                             CALL(openat),
                             CALL(pidfd_open),
                             CALL(prctl),
                             CALL(pread64),
                             CALL(prlimit64),
                             CALL(readlinkat),
                             CALL(recvfrom),
                             CALL(recvmsg),
                             CALL(sched_getaffinity),
                             CALL(sched_setaffinity),
                             CALL(sendmsg),
                             CALL(sendto),
                             CALL(setsockopt),
                             CALL(shutdown),
                             CALL(socket),
                             CALL(socketpair),
                             CALL(uname)};
#undef CALL
  constexpr std::pair<Stage, unsigned> kWhen[] = {
      {Stage::init, EPERM}, {Stage::connect, ENOSYS}, {Stage::gin, EACCES}};
  std::vector<Row> rows;
  for (const Call& call : kCalls)
    for (const auto& [at, error] : kWhen)
      rows.push_back({std::string(call.name) + " refused", at,
                      [number = call.number, error = error] { return refuse({number}, error); },
                      "seccomp"});
  return rows;
}

// Several at once: most of a life is waiting.
void walk(const std::vector<Row>& rows) {
  const Row whole{"a whole life", Stage::over, [] { return false; }, ""};
  Life model(whole);
  const Report& all = model.lived();
  REQUIRE(all.stage == Stage::over);
  const std::size_t descriptors = model.descriptors(), threads = model.threads();
  std::deque<Life> lives;
  for (std::size_t begun = 0, done = 0; done < rows.size(); ++done) {
    for (; begun < rows.size() && begun < done + 6; ++begun) lives.emplace_back(rows[begun]);
    const Row& row = rows[done];
    const Report& r = lives.front().lived();
    CAPTURE(row.name, static_cast<int>(row.at), static_cast<int>(r.stage.load()), r.warnings.load(),
            r.lines[0].data(), r.lines[1].data(), r.lines[2].data());
    CHECK((r.failed || r.in_the_test || r.stage == Stage::over));
    if (row.fails) CHECK(r.failed);
    if (r.failed) CHECK(r.says(row.remedy));
    if (r.failed) CHECK(r.warnings > 0);
    CHECK(r.warnings <= 3);
    CHECK(lives.front().keeps_at_most(descriptors, threads));
    lives.pop_front();
  }
}

}  // namespace

TEST_CASE("limits of resources leave the plugin with less, or one error with its remedy") {
  walk(limits());
}

TEST_CASE("a refused system call is told as such, or gone without") { walk(refusals()); }

}  // namespace twinpath::test
