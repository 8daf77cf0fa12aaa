#pragma once
// The table of settings between two marker lines of a Markdown file.
#include <string>

namespace twinpath::tools {

// Both give false and `why` (file, cause, remedy).
bool check_settings(const std::string& path, const std::string& table, std::string& why);
bool update_settings(const std::string& path, const std::string& table, std::string& why);

}  // namespace twinpath::tools
