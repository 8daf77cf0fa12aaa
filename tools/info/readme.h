#pragma once
// The option table between two marker lines of a Markdown file.
#include <string>

namespace twinpath::tools {

// Both give false and `why` (file, cause, remedy).
bool check_readme(const std::string& path, const std::string& table, std::string& why);
bool update_readme(const std::string& path, const std::string& table, std::string& why);

}  // namespace twinpath::tools
