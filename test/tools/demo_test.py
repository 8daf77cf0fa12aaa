"""tools/demo.sh with stand-ins for Meson, ninja and the tools: what it builds, says and refuses."""
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(os.environ["SOURCE_ROOT"])
WANTED = {"nccl-net": "plugin/nccl/libnccl-net.so",
          "nccl-net-again": "plugin/nccl/libnccl-net-again.so",
          "plugin-alias": "plugin/nccl/libnccl-net-twinpath.so",
          "nccl-tuner-twinpath": "plugin/nccl/libnccl-tuner-twinpath.so",
          "twinpath-softhca": "plugin/nccl/libtwinpath-softhca.so",
          "twinpath-copier": "plugin/nccl/twinpath-copier", "coll_perf": "tools/coll_perf/coll_perf",
          "net_perf": "tools/net_perf/net_perf", "twinpath-info": "tools/info/twinpath-info"}
OTHERS = {"unit": "test/unit/unit", "twinpath-topo": "tools/topo/twinpath-topo"}

# Writes what demo.sh reads of a build folder: meson setup [--reconfigure] FOLDER SOURCE OPTION...
MESON = """#!/usr/bin/env python3
import json, pathlib, sys
words = [w for w in sys.argv[2:] if not w.startswith("-")]
folder = pathlib.Path(words[0]).resolve()
(folder / "meson-info").mkdir(parents=True, exist_ok=True)
with open(folder / "calls", "a") as calls:
    calls.write(" ".join(["meson", *sys.argv[1:]]) + "\\n")
(folder / "build.ninja").write_text("")
names = json.loads(pathlib.Path(sys.argv[0] + ".json").read_text())
write = lambda name, what: (folder / "meson-info" / name).write_text(json.dumps(what))
write("meson-info.json", {"directories": {"source": str(pathlib.Path(words[1]).resolve()),
                                          "build": str(folder)}})
write("intro-buildoptions.json", [{"name": n, "value": v} for n, v in (
    ("buildtype", "release"), ("optimization", "3"), ("b_sanitize", "none"), ("tools", "enabled"))])
write("intro-targets.json", [{"name": n, "filename": [str(folder / f)]} for n, f in names.items()])
"""
# What is named in DEMO_HANG starts a process and waits for it.
HANG = """case " $DEMO_HANG " in
  *" ${0##*/} "*) /bin/sleep 300 & echo $! >"$HANGS.new" && mv "$HANGS.new" "$HANGS"; wait ;;
esac
"""
NINJA = """#!/bin/sh
""" + HANG + """folder=$2
shift 4
echo "ninja $*" >>"$folder/calls"
[ ! -e "$0.fail" ] || { rm "$0.fail"; echo 'error: Table is ambiguous'; exit 1; }
for file; do
  mkdir -p "$folder/${file%/*}"
  cp "${0%/*}/a-tool" "$folder/$file"
done
"""
TOOL = """#!/bin/sh
""" + HANG + """name=${0##*/}
[ "$DEMO_FAIL" != "$name" ] || { echo "$name: the far end did not answer" >&2; exit 1; }
[ ! -t 2 ] || printf '\\rPROGRESS' >&2
echo 'NCCL INFO a line of the log'
case "$name $*" in
  coll_perf*) one='{"time_us": 7.0, "busbw_gb_s": 3.21, "wrong": 0}'
    run='"what": "all_reduce ring", "bytes": 64, "out_of_place": '$one', "in_place": '$one ;;
  *' --test bw '*) run='"size": 1048576, "window": 16, "median_gbytes_per_s": 9.87, "ratio_to_memcpy": 0.5, "wrong": 0' ;;
  *) run='"size": 4096, "median_us": 1.5, "p99_us": 2.25, "min_us": 1, "wrong": 0' ;;
esac
echo '{"tool": "'$name'", "results": [{'$run'}]}'
"""
FAKES = {"meson": MESON, "ninja": NINJA, "a-tool": TOOL, "nproc": "#!/bin/sh\necho 2\n",
         "nvidia-smi": "#!/bin/sh\ncat \"$0.gpus\" 2>/dev/null\n",
         "sleep": "#!/bin/sh\nexec /bin/sleep 0.02\n"}


class Demo(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir="/tmp", prefix="d"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.tree = self.folder / "t"
        (self.tree / "tools").mkdir(parents=True)
        shutil.copy(ROOT / "tools/demo.sh", self.tree / "tools/demo.sh")
        shutil.copytree(ROOT / "tools/lib", self.tree / "tools/lib")
        (self.tree / "tools/lib/busy.py").write_text("print('0.0')")
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for name, text in FAKES.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        self.targets({**WANTED, **OTHERS})
        self.env = {"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.folder),
                    "TERM": "xterm", "LC_ALL": "C.UTF-8", "TWINPATH_FABRIC": "soft"}

    def targets(self, names):
        (self.bin / "meson.json").write_text(json.dumps(names))

    def packages(self, known, found, locked=0):
        """No package is installed; apt knows these, pkg-config finds what matches `found`."""
        texts = {
            "id": "echo 0", "dpkg-query": "exit 1",
            "pkg-config": f"echo \"$*\" | grep -Eq '{found}'",
            "apt-get": HANG + f"""
while [ "$1" = -q ] || [ "$1" = -o ]; do [ "$1" = -q ] || shift; shift; done
echo "$*" >>"$0.calls"
[ "$(wc -l <"$0.calls")" -gt {locked} ] ||
  {{ echo 'E: Could not get lock /var/lib/apt/lists/lock'; exit 100; }}
[ "$1" = install ] || exit 0
shift 3
for p; do
  case " {known} " in *" $p "*) ;; *) echo "E: Unable to locate package $p"; exit 100 ;; esac
done"""}
        for name, text in texts.items():
            (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.bin / name).chmod(0o755)

    def apt_calls(self):
        path = self.bin / "apt-get.calls"
        return path.read_text().splitlines() if path.exists() else []

    def run_demo(self, *arguments, status=0, install=False, **env):
        if not install:
            arguments = ("--no-install", *arguments)
        done = subprocess.run(["bash", str(self.tree / "tools/demo.sh"), *arguments],
                              env={**self.env, **env}, capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def on_terminal(self, **env):
        ours, theirs = pty.openpty()
        child = subprocess.Popen(["bash", str(self.tree / "tools/demo.sh"), "--no-install"],
                                 env={**self.env, **env}, stdin=subprocess.DEVNULL, stdout=theirs,
                                 stderr=theirs)
        os.close(theirs)
        text = b""
        while True:
            try:
                more = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not more:
                break
            text += more
        os.close(ours)
        self.assertEqual(child.wait(timeout=60), 0, text.decode())
        return text.decode()

    def calls(self, folder="build"):
        path = self.tree / folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def configured(self, **options):
        """A build folder that somebody set up, with these options in place of ours."""
        subprocess.run([self.bin / "meson", "setup", self.tree / "build", self.tree], check=True)
        info = self.tree / "build/meson-info"
        values = json.loads((info / "intro-buildoptions.json").read_text())
        for value in values:
            value["value"] = options.get(value["name"], value["value"])
        (info / "intro-buildoptions.json").write_text(json.dumps(values))
        (self.tree / "build/calls").unlink()

    def test_builds_what_it_shows_and_says_where_things_are(self):
        text = self.run_demo()
        setup, ninja = self.calls()
        self.assertIn("--buildtype=release", setup)
        self.assertEqual(set(ninja.split()[1:]), set(WANTED.values()))
        for line in text.splitlines():
            self.assertLessEqual(len(line), 80, line)
        self.assertNotIn("\x1b", text)
        for word in ("4 KiB", "9.87", "3.21", "What to do next", "build/tools/info/twinpath-info",
                     f"NCCL_NET_PLUGIN={self.tree}/build/plugin/nccl/libnccl-net.so"):
            self.assertIn(word, text)
        self.assertEqual(sorted(p.name for p in (self.tree / "build/results").iterdir()),
                         ["bandwidth.json", "coll_perf.json", "latency.json"])

    def test_progress_and_colours_on_a_terminal_only(self):
        text = self.on_terminal()
        self.assertEqual(text.count("PROGRESS"), 3)
        self.assertIn("\x1b[1m", text)
        self.assertIn("3.21", text)
        plain = self.on_terminal(NO_COLOR="1")
        self.assertEqual(re.findall("\x1b\\[\\d*m", plain), [])
        self.assertEqual(plain.count("PROGRESS"), 3)

    def test_a_folder_set_up_otherwise_is_used_or_named_and_never_changed(self):
        self.configured(buildtype="debug", optimization="0")
        text = self.run_demo()
        self.assertIn("build/ is set up as debug", text)
        self.assertEqual([c.split()[0] for c in self.calls()], ["ninja"])
        for options, words in ((dict(b_sanitize="address"), "-Db_sanitize=address"),
                               (dict(tools="disabled"), "meson configure build -Dtools=enabled")):
            self.configured(**options)
            text = " ".join(self.run_demo(status=1).split())
            self.assertIn(words, text)
            self.assertIn("tools/demo.sh --build build-demo", text)
            self.assertEqual(self.calls(), [])
        self.assertIn("done", self.run_demo("--build", "build-demo"))
        self.assertEqual(self.calls(), [])
        self.assertIn("build-demo/tools", self.run_demo("--build", "build-demo"))

    def test_a_folder_of_other_sources(self):
        self.configured()
        info = self.tree / "build/meson-info/meson-info.json"
        info.write_text(info.read_text().replace(f'"source": "{self.tree}"', '"source": "/elsewhere"'))
        self.assertIn("set up for the sources in /elsewhere", self.run_demo(status=1))
        self.assertEqual(self.calls(), [])

    def test_a_folder_set_up_before_the_packages_came(self):
        self.targets(OTHERS)
        self.configured()
        self.targets({**WANTED, **OTHERS})
        self.run_demo()
        self.assertEqual([c.split()[:3] for c in self.calls()][0], ["meson", "setup", "--reconfigure"])

    def test_a_busy_machine_is_said_to_be_busy(self):
        for busy, said in (("1.5", True), ("0.8", True), ("0.4", False)):
            (self.tree / "tools/lib/busy.py").write_text(f"print('{busy}')")
            text = " ".join(self.run_demo().split())
            self.assertEqual(text.count(f"other programs use {busy} of 2 processors"), said, text)
            self.assertEqual("run it again on a quiet one" in text, said)

    def test_how_busy_is_counted(self):
        # user nice system idle iowait irq softirq steal: 60 of 100 ticks busy, on 4 processors.
        done = subprocess.run(
            ["python3", "-c", "import busy; print(busy.processors_busy("
             "'cpu  10 10 10 100 100 10 10 10 7 7\\n', "
             "'cpu  20 20 20 120 120 20 20 20 9 9\\ncpu0 1', 4), busy.processors_busy('', '', 4))"],
            cwd=ROOT / "tools/lib", capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.split(), ["2.4", "0.0"])

    def test_units_that_do_not_compile_are_compiled_one_by_one(self):
        (self.bin / "ninja.fail").touch()
        self.assertIn("3.21", self.run_demo())
        self.assertEqual([c.split()[0] for c in self.calls()], ["meson", "ninja", "meson", "ninja"])
        self.assertIn("-Dunity=on", self.calls()[0])
        self.assertIn("-Dunity=off", self.calls()[2])
        self.configured()
        (self.bin / "ninja.fail").touch()
        text = self.run_demo(status=1)
        self.assertIn("Table is ambiguous", text)
        self.assertIn("build/build.log", text)

    def test_gpus(self):
        (self.bin / "nvidia-smi.gpus").write_text("GPU 0: a\nGPU 1: b\n")
        nccl = self.folder / "libnccl.so.2"
        nccl.touch()
        text = self.run_demo(TWINPATH_NCCL=str(nccl))
        self.assertIn("All-reduce over the GPUs", text)
        self.assertIn("--via-plugin", text)
        self.assertNotIn("latency", text)
        for line in text.splitlines():
            self.assertLessEqual(len(line), 80, line)

    def test_a_tool_that_fails(self):
        text = " ".join(self.run_demo(status=1, DEMO_FAIL="net_perf").split())
        self.assertIn("net_perf: the far end did not answer", text)
        self.assertIn("Troubleshooting", text)
        self.assertNotIn("What you saw", text)

    def test_what_is_there_is_not_installed(self):
        # Meson and ninja are no packages here; what pkg-config finds is none either.
        self.packages(known="", found=".*")
        text = self.run_demo(install=True)
        self.assertIn("3.21", text)
        self.assertEqual(self.apt_calls(), [])

    def test_without_a_mirror_what_is_not_needed_is_left_out(self):
        self.packages(known="", found="nlohmann_json|CLI11|libibverbs|hwloc")
        text = " ".join(self.run_demo(install=True).split())
        self.assertIn("apt-get cannot install catch2 (Unable to locate package catch2): going on without",
                      text)
        self.assertIn("3.21", text)

    def test_without_a_mirror_what_is_needed_is_named(self):
        self.packages(known="catch2", found="nlohmann_json|CLI11|hwloc")
        text = " ".join(self.run_demo(install=True, status=1).split())
        self.assertIn("error: apt-get cannot install libibverbs-dev "
                      "(Unable to locate package libibverbs-dev)", text)
        self.assertIn("apt-get install -y --no-install-recommends catch2 libibverbs-dev", text)
        self.assertEqual(self.calls(), [])

    def test_one_package_that_is_unknown_does_not_keep_the_others_away(self):
        self.packages(known="libibverbs-dev", found="nlohmann_json|CLI11|hwloc")
        text = " ".join(self.run_demo(install=True).split())
        self.assertIn("Unable to locate package catch2", text)
        self.assertEqual([c.split()[-2:] for c in self.apt_calls()],
                         [["update"], ["catch2", "libibverbs-dev"],
                          ["--no-install-recommends", "libibverbs-dev"]])

    def test_another_apt_is_waited_for(self):
        self.packages(known="catch2", found="nlohmann_json|CLI11|libibverbs|hwloc", locked=2)
        text = self.run_demo(install=True)
        self.assertIn("3.21", text)
        self.assertNotIn("going on without", text)
        self.assertEqual(self.apt_calls(), ["update"] * 3 + ["install -y --no-install-recommends catch2"])

    def interrupt(self, number, until, *arguments, **env):
        """Sends the signal as soon as until() holds; returns what was said."""
        with subprocess.Popen(["bash", str(self.tree / "tools/demo.sh"), *arguments], env={**self.env, **env},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              stdin=subprocess.DEVNULL) as script:
            end = time.monotonic() + 100
            while not until() and time.monotonic() < end:
                time.sleep(0.05)
            self.assertTrue(until())
            script.send_signal(number)
            text = script.communicate(timeout=100)[0]
        self.assertEqual(script.returncode, 128 + number, text)
        self.assertIn(f"interrupted by {number.name}", text)
        return text

    def test_interrupted_it_ends_what_it_started(self):
        self.packages(known="catch2", found="nlohmann_json|CLI11|libibverbs|hwloc")
        (self.bin / "sleep").unlink()
        for number, name in ((signal.SIGINT, "ninja"), (signal.SIGTERM, "net_perf"), (signal.SIGINT, "apt-get")):
            hangs = self.folder / f"hangs-{name}"
            arguments = [] if name == "apt-get" else ["--no-install"]
            self.interrupt(number, hangs.exists, *arguments, DEMO_HANG=name, HANGS=str(hangs))
            left = pathlib.Path("/proc", hangs.read_text().strip(), "stat")
            self.assertFalse(left.exists() and " Z " not in left.read_text(), f"{name} left a process")

    def test_dpkg_is_not_cut_short(self):
        self.packages(known="catch2", found="nlohmann_json|CLI11|libibverbs|hwloc")
        (self.bin / "sleep").unlink()
        at_it, through = self.folder / "at-it", self.folder / "through"
        (self.bin / "dpkg").write_text(f'#!/bin/sh\ntouch {at_it}\n/bin/sleep 2\ntouch {through}\n')
        (self.bin / "dpkg").chmod(0o755)
        # As where a process ends while all are looked at.
        (self.bin / "cat").write_text('#!/bin/sh\n/bin/cat "$@"\nexit 1\n')
        (self.bin / "cat").chmod(0o755)
        # Of a session of its own, as apt starts it.
        (self.bin / "apt-get").write_text("#!/bin/sh\nsetsid dpkg --unpack\n/bin/sleep 300\n")
        text = self.interrupt(signal.SIGINT, at_it.exists)
        self.assertIn("waiting until dpkg", text)
        self.assertTrue(through.exists())

    def test_wrong_arguments(self):
        self.assertIn("usage:", self.run_demo("--frobnicate", status=2))
        for line in self.run_demo("--help").splitlines():
            self.assertLessEqual(len(line), 80, line)


if __name__ == "__main__":
    unittest.main()
