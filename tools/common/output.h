#pragma once
// The last word of a tool: results that did not reach anybody are no success.
namespace twinpath::tools {

// To be called with what main() would return.  Gives it back, or `failed` and one line on stderr
// when something that was printed could not be written (a full disk, a closed pipe's end).
int finish_output(const char* tool, int status, int failed);

}  // namespace twinpath::tools
