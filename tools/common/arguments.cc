#include "tools/common/arguments.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "tools/common/address.h"
#include "tools/common/screen.h"

namespace twinpath::tools {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kTextColumn = 26;

std::string wrapped(const std::string& text, std::size_t columns) {
  std::string out;
  for (const std::string& line : wrapped_lines(text, columns))
    out += (out.empty() ? "" : "\n") + line;
  return out;
}

class HelpForm final : public CLI::Formatter {
 public:
  HelpForm() { column_width(kTextColumn); }
  // Of CLI11's "TEXT:{a,b}" what there is to choose from; texts say what else an option takes.
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();
    const std::size_t choice = type.find('{');
    return choice == std::string::npos ? "" : " " + type.substr(choice);
  }
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, positional);
    // "!--no-verify" is told by its own name.
    while (name.find("{false}") != std::string::npos) name.erase(name.find("{false}"), 7);
    return name;
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description(), kColumns - kTextColumn);
  }
  std::string make_description(const CLI::App* app) const override {
    return wrapped(CLI::Formatter::make_description(app), kColumns);
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    std::ostringstream out;
    CLI::detail::format_help(out, sub->get_display_name(true),
                             wrapped(sub->get_description(), kColumns - kTextColumn), kTextColumn);
    return out.str();
  }
};

std::string complaint(const CLI::App* app, const CLI::Error& error) {
  const CLI::App* top = app;
  while (top->get_parent() != nullptr) top = top->get_parent();
  return top->get_name() + ": " + error.what() + "; see " + top->get_name() + " --help\n";
}

// Without a type's name: help does not show it.
CLI::Validator validator(std::function<std::string(const std::string&)> check) {
  return CLI::Validator([check = std::move(check)](std::string& text) { return check(text); }, "");
}

std::string plain(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

// Whether it is a whole number in that range, and nothing else.
bool is_within(const std::string& text, long long low, long long high) {
  long long value = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  return !text.empty() && read.ec == std::errc{} && read.ptr == end && value >= low &&
         value <= high;
}

std::string range(long long low, long long high) {
  return " from " + std::to_string(low) + " to " + std::to_string(high);
}

}  // namespace

void set_form(CLI::App& app) {
  app.formatter(std::make_shared<HelpForm>());
  app.failure_message(complaint);
}

CLI::Validator is_host_port(unsigned least_port) {
  return validator([least_port](const std::string& text) {
    std::string why;
    (void)parse_host_port(text, least_port, why);
    return why;
  });
}

CLI::Validator is_between(double low, double high) {
  return validator([low, high](const std::string& text) -> std::string {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == '\0' && value >= low && value <= high) return {};
    return "'" + text + "' is not a number from " + plain(low) + " to " + plain(high);
  });
}

CLI::Validator is_whole(long long low, long long high) {
  return validator([low, high](const std::string& text) {
    return is_within(text, low, high) ? ""
                                      : "'" + text + "' is not a whole number" + range(low, high);
  });
}

CLI::Validator is_even(long long low, long long high) {
  return validator([low, high](const std::string& text) {
    return is_within(text, low, high) && (text.back() - '0') % 2 == 0
               ? ""
               : "'" + text + "' is not an even number" + range(low, high) + ": they go in pairs";
  });
}

CLI::Validator ends_in(const std::string& ending) {
  return validator([ending](const std::string& file) -> std::string {
    const std::string own = std::filesystem::path(file).extension().string();
    if (!file.empty() && (own.empty() || own == ending)) return {};
    return "'" + file + "' does not end in " + ending + ", which is what is written";
  });
}

CLI::Validator is_folder() {
  return validator([](const std::string& path) -> std::string {
    struct stat found {};
    if (stat(path.c_str(), &found) != 0)
      return "'" + path + "': " + std::strerror(errno) + "; give a folder";
    if (!S_ISDIR(found.st_mode)) return "'" + path + "' is not a folder";
    return access(path.c_str(), R_OK | X_OK) == 0 ? "" : "'" + path + "': " + std::strerror(errno);
  });
}

CLI::Validator is_readable() {
  return validator([](const std::string& path) -> std::string {
    return access(path.c_str(), R_OK) == 0 ? "" : "'" + path + "': " + std::strerror(errno);
  });
}

}  // namespace twinpath::tools
