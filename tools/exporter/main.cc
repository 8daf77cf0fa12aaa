// twinpath-exporter: the counters of this host's processes for Prometheus.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "plugin/base/clock.h"
#include "plugin/base/file.h"
#include "plugin/base/version.h"
#include "tools/common/arguments.h"
#include "tools/common/circumstances.h"
#include "tools/common/output.h"
#include "tools/counters/find.h"
#include "tools/exporter/http.h"
#include "tools/exporter/prometheus.h"

namespace {

using namespace twinpath;
using namespace twinpath::tools;

constexpr const char* kExamples =
    R"(It only reads: the counters of processes of the same user (as root, of all) and
those of adapters in /sys/class/infiniband.  A process that has ended leaves no
series.  Of each process the 32 peers that it waited for longest have series of
their own in each direction, the rest is "other".

Examples:
  twinpath-exporter                         http://127.0.0.1:9401/metrics
  twinpath-exporter --listen 0.0.0.0:9401   for scrapers on other hosts: anybody
                                            may read
  twinpath-exporter --textfile /var/lib/node_exporter --every 30
  twinpath-exporter --once                  to standard output

Exit status: 0 all right, 1 nothing could be served or written, 2 bad arguments.)";

struct Options {
  std::string listen = "127.0.0.1:9401", textfile;
  double every = 15;
  bool once = false;
  std::string sysfs = "/sys";
};

std::string metrics(const Options& o) {
  std::vector<std::string> notes;
  PrometheusText text;
  read_processes(0, notes, [&](ProcessSample p) { text.add(std::move(p)); });
  return text.text(nic_counters(o.sysfs), circumstances().host, notes.size());
}

bool write_file(const std::string& folder, const std::string& text) {
  const std::string name = folder + "/twinpath.prom";
  std::string why;
  // node_exporter is another user.
  if (replace_file(name, text, 0644, why)) return true;
  std::fprintf(stderr, "twinpath-exporter: %s %s\n", name.c_str(), why.c_str());
  return false;
}

int files(const Options& o) {
  for (;;) {
    if (!write_file(o.textfile, metrics(o))) return 1;
    if (o.once) return 0;
    ::usleep(static_cast<useconds_t>(o.every * 1e6));
  }
}

int http(const Options& o) {
  std::string why;
  const auto server = HttpServer::open(o.listen, why);
  if (server == nullptr) {
    std::fprintf(stderr, "twinpath-exporter: %s\n", why.c_str());
    return 1;
  }
  std::printf("http://%s/metrics\n", server->address().c_str());
  std::fflush(stdout);
  for (;;)
    server->serve(60'000, [&o](const std::string& path) {
      return path == "/metrics" ? metrics(o) : std::string();
    });
}

int run(int argc, char** argv) {
  Options o;
  CLI::App app{"twinpath-exporter: the counters of this host's processes for Prometheus\n",
               "twinpath-exporter"};
  set_form(app);
  app.footer(kExamples);
  app.set_version_flag("--version", std::string("twinpath-exporter ") + built_from());
  app.add_option("--listen", o.listen, "ADDRESS:PORT to serve HTTP on [127.0.0.1:9401]")
      ->check(is_host_port(0));
  app.add_option("--textfile", o.textfile,
                 "FOLDER: write twinpath.prom there, for node_exporter, in place of HTTP")
      ->check(is_folder());
  app.add_option("--every", o.every, "SECONDS between two files [15]")
      ->check(is_between(0.1, 3600));
  app.add_option("--sysfs", o.sysfs, "FOLDER to read adapters' counters from [/sys]")
      ->check(is_folder());
  app.add_flag("--once", o.once, "once, to standard output or into the folder, then end");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (!o.textfile.empty()) return files(o);
  if (!o.once) return http(o);
  std::printf("%s", metrics(o).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_tool("twinpath-exporter", 1, [&] { return run(argc, argv); });
}
