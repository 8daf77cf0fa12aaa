#pragma once
// The last word of a tool: what was thrown is one line, and results that did not reach anybody are
// no success.
#include <exception>
#include <functional>
#include <string>
#include <string_view>

namespace twinpath::tools {

// What main() returns: the status that `run` gives, or `status_of` what it threw, which is printed
// in one line on stderr.  In place of either `failed`, and one line, when something that was
// printed could not be written (a full disk).  A reader that has seen enough and gone (`| head -1`)
// is told nothing: nobody needs to know.
int run_tool(const char* tool, int failed, const std::function<int()>& run,
             const std::function<int(const std::exception&)>& status_of);
// The same, where all that is thrown leads to `failed`.
int run_tool(const char* tool, int failed, const std::function<int()>& run);

// A file that the user named, whose folder others may write to: a FIFO that nobody reads is an
// error (ENXIO), and no wait.  Both return an errno, or 0.
//
// Makes it where it is not, and leaves what is in it.
int make_output(const std::string& path);
// Writes it in place of what it held.
int write_output(const std::string& path, std::string_view data);
// Of such an errno: what follows the file's name in a sentence.
std::string why_unwritable(int error);

}  // namespace twinpath::tools
