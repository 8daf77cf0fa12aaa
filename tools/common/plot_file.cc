// The file of --plot: see plot.h.
#include <unistd.h>

#include <cstring>

#include "tools/common/failure.h"
#include "tools/common/output.h"
#include "tools/common/plot.h"

namespace twinpath::tools {
namespace {

std::string unwritable(const std::string& file, int error) {
  return "--plot " + file + " " + why_unwritable(error);
}

}  // namespace

std::string plot_file_complaint(const std::string& file) {
  if (file.empty()) return {};
  const bool there = access(file.c_str(), F_OK) == 0;
  if (const int error = make_output(file); error != 0) return unwritable(file, error);
  if (!there) (void)unlink(file.c_str());  // a run that fails leaves no empty picture
  return {};
}

void write_plots(const std::string& file, const std::vector<std::string>& heading,
                 const std::vector<PlotPanel>& panels) {
  if (const int error = write_output(file, plots_svg(heading, panels)); error != 0)
    throw Failure(unwritable(file, error));
}

}  // namespace twinpath::tools
