#pragma once
// Tar archives of a few thousand small files: what `dump` writes and `--input` reads.  Written as
// ustar with GNU's long names; read with those and with the path records of pax.
#include <string>
#include <vector>

namespace twinpath::tools::topo {

struct TarEntry {
  enum class Kind { file, folder, link };
  std::string path;  // relative, without "./"
  Kind kind = Kind::file;
  std::string data;    // of a file
  std::string target;  // of a link
};

bool looks_like_tar(const std::string& path);
// Both throw Failure (object, cause, remedy).
void write_tar(const std::string& path, const std::vector<TarEntry>& entries);
std::vector<TarEntry> read_tar(const std::string& path);

// Writes the entries below `folder`.  Entries and links that would leave it are skipped: an archive
// may come from anybody.
void unpack(const std::vector<TarEntry>& entries, const std::string& folder);

}  // namespace twinpath::tools::topo
