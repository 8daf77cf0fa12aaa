"""An installation in a folder of its own, and what every one must be able to do.  Shared by the tests
of this folder."""
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["SOURCE_ROOT"])
BUILD = pathlib.Path(os.environ["BUILD_ROOT"])
STUB_CUDA = os.environ["STUB_CUDA"]
TOOLS = ["twinpath-net-perf", "twinpath-coll-perf", "twinpath-exporter", "twinpath-info", "twinpath-top",
         "twinpath-topo", "twinpath-softhca"]
# Names of a build folder, which are links.
SHORT = {"twinpath-net-perf": "net_perf", "twinpath-coll-perf": "coll_perf", "twinpath-gda-perf": "gda_perf",
         "twinpath-softhca": "softhca"}
CLEAN = {k: v for k, v in os.environ.items()
         if not k.startswith(("TWINPATH_", "NCCL_", "LD_", "OMPI_", "PMI", "SLURM_"))}

# Opens the plugin as NCCL does for NCCL_NET_PLUGIN=twinpath: by a name that the loader looks for.
OPEN = """
import sys
sys.path.insert(0, sys.argv[1])
import net
plugin = net.Net("libnccl-net-twinpath.so")
plugin.init()
print("devices", plugin.devices())
import ctypes
again = ctypes.CDLL("libnccl-net.so")  # as NCCL that forgot its name does
print("again", hasattr(again, "ncclNetPlugin_v11"))
"""


def run(*command, env=None, limit=60, check=True):
    done = subprocess.run([str(c) for c in command], env={**CLEAN, **(env or {})}, text=True,
                          capture_output=True, timeout=limit, stdin=subprocess.DEVNULL)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit {done.returncode}\n"
                             f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done


@contextlib.contextmanager
def folder():
    path = pathlib.Path(tempfile.mkdtemp(prefix="twinpath-package-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def in_build(target):
    """Whether Meson builds it here."""
    return any(BUILD.glob(f"tools/{target}/{target}"))


def meson_install(root):
    """Stages the build below `root`; what would be its prefix."""
    run(os.environ["MESON"], "install", "-C", BUILD, "--no-rebuild", "--quiet", "--strip",
        "--destdir", root, limit=120)
    prefixes = [p.parent for p in root.rglob("bin") if p.is_dir()]
    assert len(prefixes) == 1, prefixes
    return prefixes[0]


def library_folder(prefix):
    found = [p.parent for p in prefix.rglob("libnccl-net-twinpath.so")]
    assert len(found) == 1, found
    return found[0]


def expected(prefix):
    """{path below the prefix: where it leads, or None}, of tools/package/files."""
    lib = str(library_folder(prefix).relative_to(prefix))
    out = {}
    for line in (SOURCE / "tools/package/files").read_text().splitlines():
        optional = line.startswith("? ")
        if line.startswith("#") or (optional and not in_build("gda_perf")):
            continue
        name, _, leads = line.removeprefix("? ").partition(" -> ")
        in_lib = re.compile(r"^LIB(?=/)")
        out[in_lib.sub(lib, name)] = in_lib.sub(lib, leads) or None
    return out


def present(prefix):
    """The same of what is there.  Where a link leads is followed within the installation only."""
    out = {}
    for path in prefix.rglob("*"):
        if path.is_symlink():
            target = os.readlink(path)
            whole = os.path.normpath(path.parent / target)
            out[str(path.relative_to(prefix))] = os.path.relpath(whole, prefix)
        elif not path.is_dir():
            out[str(path.relative_to(prefix))] = None
    return out


class Works:
    """What a user finds after installing; a TestCase sets `prefix`."""

    def test_plugin_is_found_by_name_with_tuner_and_copier(self):
        lib = library_folder(self.prefix)
        # With a driver that shows no GPU the plugin starts its copier at once.
        done = run(sys.executable, "-c", OPEN, SOURCE / "test/faults",
                   env={"LD_LIBRARY_PATH": str(lib), "TWINPATH_FABRIC": "soft", "LD_PRELOAD": STUB_CUDA})
        self.assertIn("devices 1\nagain True", done.stdout)
        real = os.path.realpath(lib / "twinpath")
        self.assertIn(f"NCCL_TUNER_PLUGIN={real}/libnccl-tuner-twinpath.so", done.stderr)
        self.assertNotIn("WARN", done.stderr)
        self.assertIn(f"version {self.version}, soft HCA", done.stderr)
        # The copier is looked for there and nowhere else: without it there is a warning.
        copier = lib / "twinpath/twinpath-copier"
        away = copier.with_name("away")
        copier.rename(away)
        try:
            done = run(sys.executable, "-c", OPEN, SOURCE / "test/faults",
                       env={"LD_LIBRARY_PATH": str(lib), "TWINPATH_FABRIC": "soft",
                            "LD_PRELOAD": STUB_CUDA})
        finally:
            away.rename(copier)
        self.assertIn(f"{real}/twinpath-copier cannot be started", done.stderr)

    def init(self, fabric, check=True):
        script = OPEN.split("print")[0] + 'print("softhca" in open("/proc/self/maps").read())'
        return run(sys.executable, "-c", script, SOURCE / "test/faults", check=check,
                   env={"LD_LIBRARY_PATH": str(library_folder(self.prefix)), "TWINPATH_FABRIC": fabric})

    def test_plugin_opens_the_software_adapter_beside_itself_when_asked_to(self):
        self.assertEqual(self.init("soft").stdout, "True\n")
        self.assertEqual(self.init("auto").stdout, "False\n")
        library = library_folder(self.prefix) / "twinpath/libtwinpath-softhca.so"
        name = os.path.realpath(library.parent) + "/libtwinpath-softhca.so"
        away = library.with_name("away")
        library.rename(away)
        try:
            self.assertRegex(self.refusal(), f"{name}: cannot open .*; put the file there")
            self.init("auto")
            other = self.version.replace("(", "[").replace(")", "]")
            library.write_bytes(away.read_bytes().replace(self.version.encode(), other.encode()))
            self.assertIn(f"{name} is of another build than what opens it, {self.version}: it is {other}; put",
                          self.refusal())
        finally:
            away.replace(library)

    def refusal(self):
        """The one line about the software adapter of a plugin that cannot have it."""
        done = self.init("soft", check=False)
        self.assertNotEqual(done.returncode, 0)
        (warned,) = [line for line in done.stderr.splitlines() if "WARN" in line and "softhca" in line]
        return warned

    def test_no_nccl_loads_it_unasked(self):
        """NCCL looks for libnccl-net.so; ldconfig links every library's soname in its folders."""
        lib = library_folder(self.prefix)
        before = sorted(os.listdir(lib))
        ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:" + os.environ["PATH"])
        run(ldconfig, "-n", lib)
        self.assertEqual(sorted(os.listdir(lib)), before)
        self.assertEqual(list(lib.glob("libnccl-net.so*")), [])
        self.assertEqual(list(lib.glob("libibverbs*")), [])

    def test_tools_tell_version_and_commit(self):
        tools = TOOLS + (["twinpath-gda-perf"] if in_build("gda_perf") else [])
        for name in tools:
            short = SHORT.get(name, name)
            for called in {name, short}:
                said = run(self.prefix / "bin" / called, "--version").stdout.strip()
                self.assertEqual(said, f"{short} {self.version}", called)
        copier = library_folder(self.prefix) / "twinpath/twinpath-copier"
        self.assertEqual(run(copier, "--version").stdout.strip(), f"twinpath-copier {self.version}")

    def test_tools_find_the_installed_plugin(self):
        done = run(self.prefix / "bin/twinpath-net-perf", "--sizes", "64", "--repeats", "1", "--iters", "50", "-v",
                   "--timeout", "50", env={"TWINPATH_FABRIC": "soft"})
        self.assertIn("libnccl-net.so", done.stdout)
        self.assertIn(str(library_folder(self.prefix) / "twinpath/libnccl-net.so"), done.stdout)
        run(self.prefix / "bin/coll_perf", "--cpu", "2", "-b", "1k", "-e", "1k", "-n", "2", "-w", "0",
            "--timeout", "50")

    def test_softhca_gives_programs_its_own_libibverbs(self):
        done = run(self.prefix / "bin/twinpath-softhca", "--mlx5", "--files", "sh", "-c",
                   'echo "$LD_LIBRARY_PATH $TWINPATH_COPIER"; ls "$SOFTHCA_FILES/sys/class/infiniband"',
                   env={"TMPDIR": str(self.prefix), "XDG_RUNTIME_DIR": ""})
        here = os.path.realpath(library_folder(self.prefix) / "twinpath")
        self.assertIn(f"{here}/softhca/mlx5:{here}/softhca {here}/twinpath-copier", done.stdout)
        self.assertIn("mlx5_0", done.stdout)
        for left in self.prefix.glob("softhca-*"):
            shutil.rmtree(left)
        self.assertIn("usage: softhca [", run(self.prefix / "bin/softhca", "--help").stdout)

    def test_bash_completes(self):
        script = ('export PATH=$1/bin:$PATH; . "$1/share/bash-completion/completions/net_perf"; '
                  '_twinpath "$2" "$3" "$4"; printf "%s\\n" "${COMPREPLY[@]}"')

        def choices(*words):
            return run("bash", "-c", script, "-", self.prefix, *words).stdout.split()
        self.assertIn("--sizes", choices("net_perf", "--s", "net_perf"))
        self.assertIn("--sizes", choices("twinpath-net-perf", "--s", "twinpath-net-perf"))
        self.assertEqual(choices("net_perf", "v", "--gpu-memory"), ["vmm"])
        self.assertEqual(choices("twinpath-topo", "ch", "twinpath-topo"), ["check"])
        self.assertIn("--hcas", choices("softhca", "--", "softhca"))
