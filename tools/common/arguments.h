#pragma once
// What the command lines of all tools have in common: the form of --help and of complaints, and one
// meaning each of a port, a picture, a folder, a number of seconds.  Validators' messages come
// behind the option's name, so that they begin with the value.
#include <CLI/CLI.hpp>
#include <string>

namespace twinpath::tools {

// --help in 80 columns, without CLI11's names of types; complaints in one line that begins with the
// program's name.  Before subcommands are added, which take it over.
void set_form(CLI::App& app);

// HOST:PORT or [IPv6]:PORT; `least_port` 0 where the kernel may choose it.
CLI::Validator is_host_port(unsigned least_port);
// A number from `low` to `high`; CLI::Range lets "nan" pass.
CLI::Validator is_between(double low, double high);
// A whole number from `low` to `high`: no sign that an unsigned type would wrap.
CLI::Validator is_whole(long long low, long long high);
CLI::Validator is_even(long long low, long long high);
// A file that will be written and whose name, where it has an ending, ends in `ending` (".svg").
CLI::Validator ends_in(const std::string& ending);
// A folder that can be listed; a file, or folder, that can be read.
CLI::Validator is_folder();
CLI::Validator is_readable();

}  // namespace twinpath::tools
