#include "tools/counters/find.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

#include "plugin/base/file.h"

namespace twinpath::tools {
namespace {

namespace fs = std::filesystem;

int number_of(std::string_view name) {
  int n = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), n);
  return error == std::errc{} && end == name.data() + name.size() && n > 0 ? n : 0;
}

// The numbers of a line of /proc/PID/status.
std::vector<unsigned> status_numbers(const fs::path& process, std::string_view name) {
  std::vector<unsigned> out;
  std::ifstream status(process / "status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream numbers(line.substr(name.size()));
    for (unsigned n = 0; numbers >> n;) out.push_back(n);
    break;
  }
  return out;
}

// What a child that was forked has open is its parent's page: the page names its process as that
// sees itself.
bool is_pid(const fs::path& process, int inner) {
  const std::vector<unsigned> pids = status_numbers(process, "NSpid:");
  return !pids.empty() && static_cast<int>(pids.back()) == inner;
}

std::string program_of(const fs::path& process) {
  std::ifstream comm(process / "comm");
  std::string text;
  std::getline(comm, text);
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

class Look {
 public:
  Look(const LookLimits& limits, std::vector<std::string>& notes,
       const std::function<void(ProcessSample)>& take)
      : limits_(limits), notes_(notes), take_(take) {}
  void at(int pid);

 private:
  struct User {
    std::size_t processes = 0, connections = 0, descriptors = 0, notes = 0;
  };
  struct Page {
    UniqueFd fd;
    dev_t device = 0;
    ino_t number = 0;
    unsigned uid = 0;
  };
  std::vector<Page> pages(const fs::path& process, int pid);
  void read(const fs::path& process, int pid, const Page& page);
  void leave_out(unsigned uid, int pid, const std::string& why);

  const LookLimits& limits_;
  std::vector<std::string>& notes_;
  const std::function<void(ProcessSample)>& take_;
  std::map<unsigned, User> users_;
};

void Look::leave_out(unsigned uid, int pid, const std::string& why) {
  constexpr std::size_t kMostNotes = 8;
  if (++users_[uid].notes > kMostNotes) return;
  notes_.push_back("process " + std::to_string(pid) + " is left out: " + why);
}

// Each once, however many descriptors it has.
std::vector<Look::Page> Look::pages(const fs::path& process, int pid) {
  const std::string wanted = std::string("/memfd:") + counters::kMemoryName + " (deleted)";
  std::vector<Page> out;
  const std::optional<unsigned> owner = user_of(pid);
  if (!owner) return out;
  User& user = users_[*owner];
  std::size_t looked = 0;
  std::error_code error;
  // Another user's folder cannot be opened; a process may end while it is looked at.
  for (fs::directory_iterator at(process / "fd", error), end; !error && at != end;
       at.increment(error)) {
    if (++looked > limits_.process_descriptors || ++user.descriptors > limits_.descriptors) {
      leave_out(*owner, pid, "too many descriptors are open to find its counters");
      break;
    }
    std::error_code gone;
    if (fs::read_symlink(at->path(), gone).native() != wanted) continue;
    std::string why;
    Page page{open_foreign_memory(at->path(), counters::kMemoryName, O_RDONLY, why)};
    struct stat st {};
    if (!page.fd || ::fstat(page.fd.get(), &st) != 0) continue;
    const bool known = std::any_of(out.begin(), out.end(), [&](const Page& p) {
      return p.device == st.st_dev && p.number == st.st_ino;
    });
    if (known) continue;
    if (out.size() == limits_.process_pages) {
      leave_out(st.st_uid, pid, "too many pages of counters are open");
      break;
    }
    page.device = st.st_dev;
    page.number = st.st_ino;
    // Of who made it: nobody is charged for what another shows around.
    page.uid = st.st_uid;
    out.push_back(std::move(page));
  }
  return out;
}

void Look::read(const fs::path& process, int pid, const Page& page) {
  std::string why;
  const auto view = CounterView::of_memory(page.fd.get(), why);
  if (view == nullptr) return leave_out(page.uid, pid, why);
  if (!is_pid(process, view->inner_pid())) return;
  User& user = users_[page.uid];
  if (user.processes == limits_.processes ||
      user.connections + view->places() > limits_.connections)
    return leave_out(page.uid, pid,
                     "of one user's processes, " + std::to_string(limits_.processes) + " with " +
                         std::to_string(limits_.connections) + " connections in all are read");
  ++user.processes;
  // Places, not what they give: those that are never settled take the most time.
  user.connections += view->places();
  ProcessSample sample = view->read();
  sample.pid = pid;
  sample.uid = page.uid;
  sample.program = program_of(process);
  take_(std::move(sample));
}

void Look::at(int pid) {
  const fs::path process = "/proc/" + std::to_string(pid);
  for (const Page& page : pages(process, pid)) read(process, pid, page);
}

}  // namespace

std::optional<unsigned> user_of(int pid) {
  const auto users = status_numbers("/proc/" + std::to_string(pid), "Uid:");
  return users.empty() ? std::nullopt : std::optional(users.front());
}

void read_processes(int only, std::vector<std::string>& notes,
                    const std::function<void(ProcessSample)>& take, const LookLimits& limits) {
  std::vector<int> pids;
  if (only != 0) pids.push_back(only);
  std::error_code error;
  for (fs::directory_iterator at("/proc", error), end; only == 0 && !error && at != end;
       at.increment(error))
    if (const int pid = number_of(at->path().filename().native()); pid != 0) pids.push_back(pid);
  std::sort(pids.begin(), pids.end());
  Look look(limits, notes, take);
  for (const int pid : pids) look.at(pid);
}

}  // namespace twinpath::tools
