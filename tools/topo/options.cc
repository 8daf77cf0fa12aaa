#include "tools/topo/options.h"

#include <CLI/CLI.hpp>

#include "plugin/base/version.h"
#include "tools/common/arguments.h"

namespace twinpath::tools::topo {
namespace {

constexpr const char* kExamples = R"(Examples:
  twinpath-topo                    classes, the HCA of each GPU and its mode
  twinpath-topo why GPU0 mlx5_0    every fact and rule behind one pair
  twinpath-topo check              before a job: what is missing here
  twinpath-topo check --hosts a,b  on both: what differs, who reaches whom
  mpirun -np 2 --host a,b twinpath-topo check
  twinpath-topo --svg node.svg     a picture
  twinpath-topo dump node.tar      what a bug report needs
  twinpath-topo --input node.tar --peer other.tar
  lstopo --whole-io node.xml; twinpath-topo --input node.xml

Nothing needs root, a GPU or an adapter. What could not be read is "not known",
never "no".

Exit status: 0 all right; check: 1 warnings, 2 failures; 3 bad arguments,
unreadable input, or output that cannot be written.)";

}  // namespace

bool parse_options(int argc, char** argv, Options& o, int& exit_code) {
  CLI::App app{"twinpath-topo: where GPUs and HCAs sit, which way data goes, and what is missing\n",
               "twinpath-topo"};
  set_form(app);
  app.footer(kExamples);
  app.set_version_flag("--version", std::string("twinpath-topo ") + built_from());
  app.fallthrough();  // options may stand before or behind the command
  app.add_option("--input", o.input.path,
                 "FILE or FOLDER instead of this node: XML of hwloc (lstopo --whole-io) or NCCL, a "
                 "dump, a folder with sys and proc");
  app.add_option("--host", o.input.host, "number of the host in an NCCL XML of several")
      ->check(is_whole(0, 1 << 20));
  app.add_option("--placement", o.input.placement,
                 "FILE: NCCL topology XML laid over what is read; on this node NCCL_TOPO_FILE is "
                 "the default")
      ->check(is_readable());
  app.add_option("--platform-file", o.platform_file,
                 "FILE: classes, rates and rails set by hand; on this node TWINPATH_PLATFORM_FILE "
                 "is the default");
  app.add_option("--peer", o.peer, "FILE or FOLDER: decide for this other machine (as --input)");
  app.add_flag("!--no-hwloc", o.input.hwloc, "do not look through hwloc as well (this node only)");
  app.add_flag("!--no-cuda", o.input.cuda, "do not start the CUDA driver (this node only)");
  app.add_flag("--json", o.json, "JSON instead of text");
  app.add_option("--svg", o.svg, "FILE.svg: write a picture")->check(ends_in(".svg"));
  app.add_option("--png", o.png, "FILE.png: the same as PNG; needs rsvg-convert")
      ->check(ends_in(".png"));
  app.add_option("--nccl-xml", o.nccl_xml, "FILE.xml: write a topology that NCCL_TOPO_FILE takes")
      ->check(ends_in(".xml"));

  auto* why = app.add_subcommand("why", "every fact and rule behind one GPU and one HCA");
  why->add_option("GPU", o.gpu, "GPU0, 0 or a bus id")->required();
  why->add_option("HCA", o.hca, "mlx5_0 or a bus id")->required();
  auto* check = app.add_subcommand("check",
                                   "before a job: every step to GPUDirect RDMA, limits, libraries, "
                                   "settings, addresses: OK, WARN, "
                                   "FAIL, unknown");
  check->add_flag("--strict", o.strict, "unknown counts as a warning");
  check->add_option("--hosts", o.hosts,
                    "a,b,...: on each of these by ssh; then what differs, and each pair of rails");
  check->add_option("--ssh", o.ssh, "COMMAND that takes a host and a shell's line [" + o.ssh + "]");
  check->add_option("--rank", o.rank, "RANK/SIZE of a job started by hand");
  check->add_option("--rendezvous", o.rendezvous, "HOST:PORT where rank 0 listens")
      ->check(is_host_port(1));
  check->add_flag("--no-mpi", o.ignore_launcher, "this host alone, inside mpirun or Slurm too");
  check->add_option("--patience", o.patience_s, "SECONDS to wait for a pair of rails [10]")
      ->check(is_between(0.1, 600));
  check
      ->add_option("--archive", o.archive,
                   "FILE.tar: for a bug report, with the findings and this node's dump")
      ->check(ends_in(".tar"));
  check->add_flag("--anonymous", o.anonymous,
                  "names of hosts and users and addresses replaced, here and in the archive");
  app.add_subcommand("tree", "the PCIe tree down to GPUs and HCAs");
  auto* dump = app.add_subcommand("dump", "write what --input needs to see this node again");
  dump->add_option("OUT", o.out, "FILE.tar")->required()->check(ends_in(".tar"));
  dump->add_flag("--raw", o.raw, "keep GUIDs and the host's name (otherwise hashed)");
  app.add_subcommand("probe",
                     "try to register memory of each GPU on each HCA (this node, needs both)");
  app.require_subcommand(0, 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    exit_code = app.exit(e) == 0 ? 0 : kBadArguments;
    return false;
  }
  constexpr std::pair<const char*, Command> kCommands[] = {{"why", Command::why},
                                                           {"check", Command::check},
                                                           {"tree", Command::tree},
                                                           {"dump", Command::dump},
                                                           {"probe", Command::probe}};
  for (const auto& [name, command] : kCommands)
    if (app.got_subcommand(name)) o.command = command;
  return true;
}

}  // namespace twinpath::tools::topo
