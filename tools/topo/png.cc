#include "tools/topo/png.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tools/common/failure.h"
#include "tools/common/output.h"

extern char** environ;

namespace twinpath::tools::topo {
namespace {

// The SVG on the disk: a pipe could fill while nobody reads.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& text) {
    const char* folder = std::getenv("TMPDIR");
    path_ = std::string(folder == nullptr || *folder == '\0' ? "/tmp" : folder) +
            "/twinpath-topo.XXXXXX";
    const int fd = ::mkostemp(path_.data(), O_CLOEXEC);
    if (fd < 0) throw Failure(path_ + ": cannot be made: " + std::strerror(errno));
    std::size_t written = 0;
    ssize_t n = 0;
    while (written < text.size() &&
           (n = ::write(fd, text.data() + written, text.size() - written)) > 0)
      written += static_cast<std::size_t>(n);
    const int error = errno;
    (void)::close(fd);
    if (written < text.size()) {
      (void)::unlink(path_.c_str());
      throw Failure(path_ + ": cannot be written: " + std::strerror(error));
    }
  }
  ~ScratchFile() { (void)::unlink(path_.c_str()); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  std::string& path() { return path_; }

 private:
  std::string path_;
};

}  // namespace

void write_png(const std::string& path, const std::string& svg) {
  if (const int error = make_output(path); error != 0)
    throw Failure(path + ": " + why_unwritable(error));
  ScratchFile source(svg);
  std::string program = "rsvg-convert", out = "--output=" + path;
  char* words[] = {program.data(), out.data(), source.path().data(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, words[0], nullptr, nullptr, words, environ);
  if (error != 0)
    throw Failure("--png: rsvg-convert cannot be started: " + std::string(std::strerror(error)) +
                  "; install librsvg2-bin, or use --svg");
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Failure(path + ": rsvg-convert did not write it; its own words stand above");
}

}  // namespace twinpath::tools::topo
