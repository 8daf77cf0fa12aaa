#pragma once
// A picture as PNG.
#include <string>

namespace twinpath::tools::topo {

// Writes the SVG as a PNG file, by the program rsvg-convert.  Throws Failure, which names the
// package when the program is missing.
void write_png(const std::string& path, const std::string& svg);

}  // namespace twinpath::tools::topo
