// The file of --plot: see plot.h.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "plugin/base/owned.h"
#include "tools/common/failure.h"
#include "tools/common/plot.h"

namespace twinpath::tools {
namespace {

std::string unwritable(const std::string& file, int error) {
  return "--plot " + file +
         " cannot be written: " + (error == 0 ? "the output was lost" : std::strerror(error)) +
         "; give a file in a folder of yours";
}

}  // namespace

std::string plot_file_complaint(const std::string& file) {
  if (file.empty()) return {};
  const bool there = access(file.c_str(), F_OK) == 0;
  const UniqueFd fd(open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!fd) return unwritable(file, errno);
  if (!there) (void)unlink(file.c_str());  // a run that fails leaves no empty picture
  return {};
}

void write_plots(const std::string& file, const std::vector<std::string>& heading,
                 const std::vector<PlotPanel>& panels) {
  errno = 0;
  std::ofstream out(file);
  const int error = errno;
  out << plots_svg(heading, panels);
  out.close();
  if (!out) throw Failure(unwritable(file, error));
}

}  // namespace twinpath::tools
