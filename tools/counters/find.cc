#include "tools/counters/find.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

namespace twinpath::tools {
namespace {

namespace fs = std::filesystem;

int number_of(std::string_view name) {
  int n = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), n);
  return error == std::errc{} && end == name.data() + name.size() && n > 0 ? n : 0;
}

// What a child that was forked has open is its parent's page: the page names its process as that
// sees itself.
bool is_pid(const fs::path& process, int inner) {
  std::ifstream status(process / "status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("NSpid:", 0) != 0) continue;
    std::istringstream numbers(line.substr(6));
    int last = 0;
    for (int n = 0; numbers >> n;) last = n;
    return last == inner;
  }
  return false;
}

std::string program_of(const fs::path& process) {
  std::ifstream comm(process / "comm");
  std::string text;
  std::getline(comm, text);
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

void look_at(const fs::path& process, int pid, std::vector<FoundProcess>& out,
             std::vector<std::string>& notes) {
  const std::string wanted = std::string("/memfd:") + counters::kMemoryName + " (deleted)";
  std::error_code error;
  // Another user's folder cannot be opened; a process may end while it is looked at.
  for (fs::directory_iterator at(process / "fd", error), end; !error && at != end;
       at.increment(error)) {
    std::error_code gone;
    if (fs::read_symlink(at->path(), gone).native() != wanted) continue;
    const UniqueFd fd(::open(at->path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd) continue;
    std::string why;
    std::shared_ptr<CounterView> view = CounterView::of_memory(fd.get(), why);
    if (view == nullptr) {
      notes.push_back("process " + std::to_string(pid) + " is left out: " + why);
      continue;
    }
    if (!is_pid(process, view->inner_pid())) continue;
    struct stat st {};
    (void)::stat(process.c_str(), &st);
    out.push_back({pid, st.st_uid, program_of(process), std::move(view)});
  }
}

}  // namespace

ProcessSample FoundProcess::read() const {
  ProcessSample s = view->read();
  s.pid = pid;
  s.uid = uid;
  s.program = program;
  return s;
}

std::vector<FoundProcess> find_processes(int only, std::vector<std::string>& notes) {
  std::vector<FoundProcess> out;
  if (only != 0) {
    look_at("/proc/" + std::to_string(only), only, out, notes);
    return out;
  }
  std::error_code error;
  for (fs::directory_iterator at("/proc", error), end; !error && at != end; at.increment(error))
    if (const int pid = number_of(at->path().filename().native()); pid != 0)
      look_at(at->path(), pid, out, notes);
  std::sort(out.begin(), out.end(),
            [](const FoundProcess& a, const FoundProcess& b) { return a.pid < b.pid; });
  return out;
}

}  // namespace twinpath::tools
