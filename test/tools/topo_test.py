"""twinpath-topo: golden text and pictures of six machines, JSON of five, dump and replay, bad input.

TOPO_UPDATE=1 writes the golden files anew; look at the difference before keeping it.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

from tool import SOURCE_ROOT, clean_environment
from topo_machine import troubled

TOPO = os.environ["TWINPATH_TOPO"]
OWN = os.path.join(SOURCE_ROOT, "test", "golden", "topology")
GOLDEN = os.path.join(SOURCE_ROOT, "test", "golden", "topo")
SHARED = os.environ.get("TWINPATH_TOPOLOGY_DATA",
                        os.path.join(os.path.dirname(SOURCE_ROOT), "shared", "topology"))
BAD = 3  # exit status of bad arguments and unreadable input

# name: file below test/golden/topology; the sixth is made by topo_machine.py.
MACHINES = {"two-sockets": "two-sockets.hwloc.xml",
            "four-nodes": "four-nodes.hwloc.xml",
            "flat-guest": "flat-guest.hwloc.xml",
            "grace-data-direct": "grace-data-direct.nccl.xml",
            "eight-devices": "eight-devices.nccl.xml",
            "troubled": None}
# Its JSON has no member, type or code that another's has not.
TEXT_ONLY = "eight-devices"


def topo(*args, cwd=None, env=None):
    return subprocess.run([TOPO, *map(str, args)], cwd=cwd, capture_output=True, text=True,
                          env={**clean_environment(), **(env or {})}, timeout=60)


def one_line(test, done, *words, status=BAD):
    test.assertEqual(done.returncode, status, done.stdout + done.stderr)
    test.assertEqual(done.stderr.count("\n"), 1, done.stderr)
    test.assertTrue(done.stderr.startswith("twinpath-topo: "), done.stderr)
    for word in words:
        test.assertIn(word, done.stderr)


class Scratch(unittest.TestCase):
    def setUp(self):
        # A disk takes long to make a machine's small files; one program here has to be run, too.
        memory = "/dev/shm"
        usable = os.access(memory, os.W_OK | os.X_OK) and not os.statvfs(memory).f_flag & os.ST_NOEXEC
        self.folder = tempfile.mkdtemp(dir=memory if usable else None)
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def spill(self, name, text):
        with open(self.path(name), "wb") as out:
            out.write(text if isinstance(text, bytes) else text.encode())
        return self.path(name)

    def machine(self, name):
        """The input's name in the scratch folder: the outputs may name it."""
        if MACHINES[name] is None:
            if not os.path.exists(self.path(name)):
                troubled(self.path(name))
            return name
        shutil.copy(os.path.join(OWN, MACHINES[name]), self.folder)
        return MACHINES[name]

    def replay(self, name, *args):
        return topo("--input", self.machine(name), *args, cwd=self.folder)


def by_record(test, text):
    """A document with one record a line, as the golden files have it: its order is kept, and its
    spaces are those of any indented JSON."""
    document = json.loads(text)
    test.assertEqual(json.dumps(document, indent=2, ensure_ascii=False) + "\n", text)

    def value(of):
        if not (isinstance(of, list) and of and isinstance(of[0], dict)):
            return line(of)
        return "[\n" + ",\n".join(map(line, of)) + "\n]"

    def line(of):
        return json.dumps(of, ensure_ascii=False)

    return "{\n" + ",\n".join(f"{line(k)}: {value(v)}" for k, v in document.items()) + "\n}\n"


class Golden(Scratch):
    maxDiff = None

    def compare(self, name, text):
        path = os.path.join(GOLDEN, name)
        if os.environ.get("TOPO_UPDATE"):
            os.makedirs(GOLDEN, exist_ok=True)
            with open(path, "w", encoding="utf-8") as out:
                out.write(text)
        with open(path, encoding="utf-8") as golden:
            self.assertEqual(golden.read(), text, name)

    def test_text_json_and_picture_of_each_machine(self):
        for name in MACHINES:
            with self.subTest(name):
                matrix, tree, check = (self.replay(name, *a) for a in ([], ["tree"], ["check"]))
                self.assertEqual((matrix.returncode, tree.returncode), (0, 0), matrix.stderr)
                why = self.replay(name, "why", "GPU0", "mlx5_0")
                self.assertEqual(why.returncode, 0, why.stderr)
                text = "".join(f"== {title}\n{done.stdout}" for title, done in
                               (("matrix", matrix), ("why GPU0 mlx5_0", why), ("tree", tree),
                                ("check", check)))
                for line in text.splitlines():
                    self.assertLessEqual(len(line), 80, line)
                    self.assertEqual(line, line.rstrip())
                self.compare(name + ".txt", text)
                as_json = self.replay(name, "--json")
                self.assertEqual(as_json.returncode, 0, as_json.stderr)
                if name != TEXT_ONLY:
                    self.compare(name + ".json", by_record(self, as_json.stdout))
                done = self.replay(name, "--svg", "out.svg")
                self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
                with open(self.path("out.svg"), encoding="utf-8") as f:
                    self.compare(name + ".svg", f.read())

    def test_classes_are_those_of_the_readers_own_golden_files(self):
        for name, source in MACHINES.items():
            if source is None:
                continue
            report = json.loads(self.replay(name, "--json").stdout)
            bus = {h["name"]: h["name"] for h in report["hcas"]}
            lines = {f"{report['gpus'][p['gpu']]['bus']} {bus[p['hca']]} {p['class']}"
                     for p in report["pairs"]}
            with open(os.path.join(OWN, name + ".classes.txt"), encoding="utf-8") as f:
                wanted = {line.strip() for line in f if not line.startswith("#") and line.strip()}
            # NCCL's files have no host bridges and name data-direct functions; the tool's file
            # for these machines may have nearer classes, never other pairs.
            self.assertEqual({w.rsplit(" ", 1)[0] for w in wanted},
                             {line.rsplit(" ", 1)[0] for line in lines}, name)
            if source.endswith("hwloc.xml"):
                self.assertEqual(wanted, lines, name)

    def test_pictures_are_xml_within_their_frame(self):
        for name in MACHINES:
            self.replay(name, "--svg", "out.svg")
            root = ElementTree.parse(self.path("out.svg")).getroot()
            width, height = float(root.get("width")), float(root.get("height"))
            self.assertLessEqual(width, 1600)
            for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
                if rect.get("x") is None:
                    continue
                right = float(rect.get("x")) + float(rect.get("width"))
                low = float(rect.get("y")) + float(rect.get("height"))
                self.assertTrue(right <= width and low <= height, (name, rect.attrib))

    def test_no_line_of_a_picture_runs_over_a_device_or_its_words(self):
        tag = "{http://www.w3.org/2000/svg}"
        number = r"(-?[\d.]+)"
        line = re.compile(f"M{number} {number} V{number} q.* H{number} q{number} .* V{number}$")
        lines = 0
        for name in MACHINES:
            self.replay(name, "--svg", "out.svg")
            root = ElementTree.parse(self.path("out.svg")).getroot()
            devices = []
            for group in root.iter(tag + "g"):
                rect = group.find(tag + "rect")
                if rect is not None and rect.get("fill") in ("#cdeccd", "#d3e4fd", "#e6effd"):
                    x, y, w, h = (float(rect.get(k)) for k in ("x", "y", "width", "height"))
                    devices.append((x, y, x + w, y + h))
                    for text in group.iter(tag + "text"):  # within its box
                        self.assertTrue(x < float(text.get("x")) < x + w, name)
                        self.assertTrue(y < float(text.get("y")) < y + h, (name, text.text))
            for path in root.iter(tag + "path"):
                x1, y1, down, along, turn, y2 = map(float, line.match(path.get("d")).groups())
                x2, y = along + turn, down + 5
                lines += 1
                for area in ((min(x1, x2), y - 1, max(x1, x2), y + 1),
                             (x1 - 1, y1 + 1, x1 + 1, y), (x2 - 1, y2 + 1, x2 + 1, y)):
                    for d in devices:
                        self.assertFalse(area[0] < d[2] and d[0] < area[2] and
                                         area[1] < d[3] and d[1] < area[3], (name, area, d))
        self.assertGreaterEqual(lines, 12)

    def test_a_png_needs_a_program_and_says_which(self):
        self.machine("two-sockets")
        folder = self.path("bin")
        os.mkdir(folder)
        arguments = ("--input", "two-sockets.hwloc.xml", "--png", "out.png")
        path = {"PATH": folder}
        one_line(self, topo(*arguments, cwd=self.folder, env=path), "rsvg-convert", "librsvg2-bin")
        with open(os.path.join(folder, "rsvg-convert"), "w", encoding="utf-8") as program:
            program.write("#!/bin/sh\nwhile read -r l; do case $l in *svg*) "
                          "echo PNG >${1#--output=};; esac; done <$2\n")
        os.chmod(program.name, 0o755)
        done = topo(*arguments, cwd=self.folder, env=path)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        with open(self.path("out.png"), encoding="utf-8") as png:
            self.assertEqual(png.read(), "PNG\n")
        arguments = (*arguments[:-1], "/nowhere/x.png")
        one_line(self, topo(*arguments, cwd=self.folder, env=path), "/nowhere/x.png")


class Troubles(Scratch):
    """What `check` must find on a machine with one of every trouble."""

    def setUp(self):
        super().setUp()
        done = self.replay("troubled", "check", "--json")
        self.status = done.returncode
        self.checks = json.loads(done.stdout)["checks"]

    def levels(self, check, word=""):
        return {c["level"] for c in self.checks
                if c["check"] == check and any(word in o for o in c["objects"] or [""])}

    def test_each_is_found_and_has_a_remedy(self):
        self.assertEqual(self.status, 2)
        for check, word, level in (
                ("open-modules", "", "FAIL"), ("peermem", "", "FAIL"), ("registry", "", "OK"),
                ("memlock", "", "FAIL"), ("port-state", "mlx5_1", "FAIL"), ("mtu", "mlx5_2", "WARN"),
                ("sr-iov", "mlx5_2", "WARN"), ("acs", "GPU0 mlx5_0", "WARN"),
                ("gpu-link", "GPU1", "WARN"), ("numa", "GPU3", "WARN"),
                ("role", "mlx5_3", "OK"), ("kernel", "", "OK"), ("uverbs", "", "OK")):
            with self.subTest(check):
                self.assertEqual(self.levels(check, word), {level})
        for c in self.checks:
            self.assertEqual(c["level"] in ("WARN", "FAIL"), c["level"] not in ("OK", "unknown"))
            if c["level"] in ("WARN", "FAIL"):
                self.assertTrue(c["remedy"], c)

    def test_repairs_are_seen(self):
        root = self.path("troubled")
        port = root + "/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:02.0/0000:15:00.0"
        with open(port + "/infiniband/mlx5_1/ports/1/state", "w", encoding="utf-8") as f:
            f.write("4: ACTIVE\n")
        with open(root + "/proc/modules", "a", encoding="utf-8") as f:
            f.write("nvidia_peermem 1 0 - Live 0x0\n")
        self.checks = json.loads(self.replay("troubled", "check", "--json").stdout)["checks"]
        self.assertEqual(self.levels("port-state", "mlx5_1"), {"OK"})
        self.assertEqual(self.levels("peermem"), {"OK"})

    def test_exit_status_counts_unknown_only_when_strict(self):
        # An XML of hwloc tells nothing of drivers and limits, and its machine is well placed.
        self.assertEqual(topo("--input", self.machine("eight-devices"), "check",
                              cwd=self.folder).returncode, 0)
        done = topo("--input", "eight-devices.nccl.xml", "check", "--strict", cwd=self.folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("exit status 1", done.stdout)


class Dump(Scratch):
    def test_a_dump_says_the_same_and_keeps_secrets(self):
        before = self.replay("troubled", "--json")
        done = topo("--input", "troubled", "dump", "out.tar", cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        after = topo("--input", "out.tar", "--json", cwd=self.folder)
        a, b = json.loads(before.stdout), json.loads(after.stdout)
        for report in (a, b):
            report.pop("sources")
            report["node"].pop("name")
            for h in report["hcas"]:
                h.pop("card")
        self.assertEqual(a, b)
        with open(self.path("out.tar"), "rb") as f:
            dump = f.read()
        for secret in (b"SERIALNO", b"0c42:a103", b"troubled", b"0101A8C0"):
            self.assertNotIn(secret, dump)
        # Its checks are the same, too: limits, routes and settings are in it.
        self.assertEqual(self.replay("troubled", "check").stdout,
                         topo("--input", "out.tar", "check", cwd=self.folder).stdout)

    def test_raw_keeps_guids_and_tar_reads_it(self):
        self.machine("troubled")
        topo("--input", "troubled", "dump", "out.tar", "--raw", cwd=self.folder)
        with tarfile.open(self.path("out.tar")) as archive:
            names = archive.getnames()
            guid = next(n for n in names if n.endswith("mlx5_0/node_guid"))
            self.assertEqual(archive.extractfile(guid).read(), b"0c42:a103:0000:0010\n")
            self.assertIn("sys/class/infiniband/mlx5_0", names)
            self.assertFalse(any(n.startswith(("/", "..")) for n in names))
            archive.extractall(self.path("unpacked"))
        done = topo("--input", "unpacked", "why", "GPU2", "mlx5_2", cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_archives_of_others(self):
        troubled(self.path("troubled"))
        for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
            with tarfile.open(self.path("other.tar"), "w", format=form) as archive:
                archive.add(self.path("troubled"), "node7-" + "x" * 90)
            done = topo("--input", "other.tar", cwd=self.folder)
            self.assertIn("4 GPUs  4 HCAs", done.stdout, done.stderr)

    def test_an_archive_writes_nothing_outside(self):
        import io
        with tarfile.open(self.path("evil.tar"), "w") as archive:
            for name, target in (("sys/up", "../.."), ("sys/abs", "/")):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, target
                archive.addfile(link)
            for name in ("../stolen", "sys/up/../../../stolen", "sys/up/stolen"):
                entry = tarfile.TarInfo(name)
                entry.size = 1
                archive.addfile(entry, io.BytesIO(b"x"))
        inner = self.path("tmp")
        os.mkdir(inner)
        topo("--input", self.path("evil.tar"), env={"TMPDIR": inner})
        self.assertEqual(sorted(os.listdir(self.folder)), ["evil.tar", "tmp"])
        self.assertEqual(os.listdir(inner), [])  # what was unpacked is gone as well

    def test_xml_cannot_be_dumped(self):
        one_line(self, topo("--input", self.machine("two-sockets"), "dump", "out.tar",
                            cwd=self.folder), "two-sockets.hwloc.xml", "copy the file")
        self.machine("troubled")
        one_line(self, topo("--input", "troubled", "dump", "/nowhere/out.tar", cwd=self.folder),
                 "/nowhere/out.tar")


class TwoReaders(Scratch):
    def test_what_somebody_gives_is_read_by_our_own_readers(self):
        # libhwloc trusts its input, and damage ends the process: it sees this node only.
        self.machine("troubled")
        given = json.loads(topo("--input", "troubled", "--json", cwd=self.folder).stdout)
        self.assertEqual({p["agree"] for p in given["pairs"]}, {None})
        self.assertEqual([s for s in given["sources"] if "hwloc" in s], [])
        live = json.loads(topo("--json").stdout)
        if any(s.startswith("no hwloc") for s in live["sources"]):
            self.skipTest("hwloc is not installed")
        self.assertTrue(any(s.startswith("hwloc interface") for s in live["sources"]))
        # Nor a file that hwloc's own variables name.
        for name in ("HWLOC_XMLFILE", "HWLOC_SYNTHETIC", "HWLOC_FSROOT"):
            done = topo("--json", env={name: "/nowhere/x"})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(any(name in s for s in json.loads(done.stdout)["sources"]))

    def test_a_sysfs_that_cannot_be_listed_is_unknown_not_empty(self):
        os.makedirs(self.path("bare/sys/devices"))
        done = topo("--input", "bare", cwd=self.folder)
        self.assertIn("GPUs not known", done.stdout)
        topo("--input", "bare", "dump", "bare.tar", cwd=self.folder)
        done = topo("--input", "bare.tar", "check", cwd=self.folder)
        self.assertNotEqual(done.returncode, 3, done.stderr)
        self.assertNotIn("no GPU found", done.stdout)


class Peers(Scratch):
    def test_directions_differ_where_the_ends_do(self):
        done = topo("--input", self.machine("two-sockets"), "--peer", self.machine("troubled"),
                    "--json", cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        peer = json.loads(done.stdout)["peer"]
        self.assertEqual(peer["node"], "troubled")
        self.assertEqual(len(peer["pairs"]), 4)  # two GPUs here, four there
        # The other end can register nothing: neither direction gets further than staging.
        for pair in peer["pairs"]:
            self.assertEqual(pair["host_driven"]["send"]["mode"], "PROXY-STAGE")
        done = topo("--input", "two-sockets.hwloc.xml", "--peer", "troubled", "why",
                    "GPU0", "mlx5_0", cwd=self.folder)
        self.assertIn("to troubled GPU0", done.stdout)
        self.assertIn("from troubled GPU0", done.stdout)

    def test_a_peer_without_gpus(self):
        self.spill("empty.xml", '<system version="1"><cpu numaid="0"/></system>')
        done = topo("--input", self.machine("two-sockets"), "--peer", "empty.xml", cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no GPU there", done.stdout)


class Overrides(Scratch):
    def test_the_platform_file_is_followed_and_marked(self):
        self.spill("platform", "GPU 0000:13:00.0 HCA mlx5_2 CLASS PIX\nHCA mlx5_0 IGNORE\nnonsense\n")
        done = self.replay("two-sockets", "--platform-file", "platform")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"GPU0 +n0 +PIX +PXB +PIX! ")
        self.assertRegex(done.stdout, r"GPU0 +mlx5_2 +PIX! ")
        self.assertIn("platform file: line 3", done.stdout)
        self.assertIn("mlx5_0  HCA_EXCLUDED", done.stdout)
        self.replay("two-sockets", "--platform-file", "platform", "--svg", "out.svg")
        with open(self.path("out.svg"), encoding="utf-8") as svg:
            self.assertIn(">left out by the platform file<", svg.read())
        done = self.replay("two-sockets", "--platform-file", "platform", "check")
        self.assertRegex(done.stdout, r"WARN +platform-file")

    def test_a_placement_file_moves_devices_of_a_guest(self):
        before = json.loads(self.replay("flat-guest", "--json").stdout)
        bus = [d["bus"] for d in before["gpus"][:1] + before["hcas"][:1]]
        pci = '<pci busid="{}" class="{}"/>'
        placement = self.spill("place.xml", '<system version="1"><cpu numaid="0">'
                               '<pci busid="ffff:ff:01.0" class="0x060400">' +
                               pci.format(bus[0], "0x030200") + pci.format(bus[1], "0x020700") +
                               "</pci></cpu></system>")
        after = json.loads(self.replay("flat-guest", "--json", "--placement", placement).stdout)
        self.assertNotEqual(before["pairs"][0]["class"], "PIX")
        self.assertEqual(after["pairs"][0]["class"], "PIX")


class NcclXml(Scratch):
    def test_what_is_written_reads_back_to_the_same_switches(self):
        self.replay("two-sockets", "--nccl-xml", "out.xml")
        a = json.loads(self.replay("two-sockets", "--json").stdout)
        b = json.loads(topo("--input", "out.xml", "--json", cwd=self.folder).stdout)
        near = ("SELF", "PIX", "PXB")
        classes = [{(p["gpu"], p["hca"]): p["class"] for p in r["pairs"] if p["class"] in near}
                   for r in (a, b)]
        self.assertEqual(classes[0], classes[1])
        self.assertTrue(classes[0])


class BadInput(Scratch):
    def test_files_that_are_none(self):
        one_line(self, topo("--input", "/nowhere/x.xml"), "--input /nowhere/x.xml: ", "no such file")
        one_line(self, topo("--input", self.spill("text.xml", "hello\n")), "neither a topology")
        one_line(self, topo("--input", self.spill("html.xml", "<html><topologyx/></html>")))
        one_line(self, topo("--input", self.spill("empty", "")))
        one_line(self, topo("--input", self.folder), "no folder 'sys'")
        one_line(self, topo("--input", self.spill("c.tar.gz", b"\x1f\x8b\x08\x00abc")), "unpack")
        one_line(self, topo("--peer", "/nowhere/x.xml"), "--peer /nowhere/x.xml: ")

    def test_files_cut_short(self):
        for name in ("two-sockets.hwloc.xml", "two-sockets.nccl.xml"):
            with open(os.path.join(OWN, name), encoding="utf-8") as f:
                text = f.read()
            for share in (0.3, 0.6, 0.95):
                cut = self.spill("cut.xml", text[:int(len(text) * share)])
                done = topo("--input", cut)
                self.assertEqual(done.returncode, BAD, name)
                self.assertIn("twinpath-topo: ", done.stderr)
                self.assertIn("cut.xml", done.stderr)
        self.machine("troubled")
        topo("--input", "troubled", "dump", "out.tar", cwd=self.folder)
        with open(self.path("out.tar"), "rb") as f:
            dump = f.read()
        one_line(self, topo("--input", self.spill("cut.tar", dump[:len(dump) // 2])), "--input ",
                 "cut off")
        broken = dump[:2048] + bytes(b ^ 0x15 for b in dump[2048:4096]) + dump[4096:]
        self.assertEqual(topo("--input", self.spill("bad.tar", broken)).returncode, BAD)

    def test_names_that_would_command_a_terminal(self):
        source = self.spill("odd.xml", b'<system version="1"><cpu numaid="0"><pci busid="0000:02:00.0" '
                            b'class="0x020700"><nic><net name="mlx5\x1b[31m\xff" speed="400000" '
                            b'port="1"/></nic></pci></cpu></system>')
        done = topo("--input", source, "tree")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("mlx5?[31m?", done.stdout)
        topo("--input", source, "--svg", self.path("x.svg"))
        ElementTree.parse(self.path("x.svg"))

    def test_names_that_do_not_exist(self):
        self.machine("two-sockets")
        source = ("--input", "two-sockets.hwloc.xml", "why")
        one_line(self, topo(*source, "GPU9", "mlx5_0", cwd=self.folder), "GPU9", "GPU0 to GPU1")
        one_line(self, topo(*source, "GPU0", "mlx9", cwd=self.folder), "mlx9", "mlx5_0, mlx5_1")
        self.assertEqual(topo(*source, "0", "0000:14:00.0", cwd=self.folder).returncode, 0)
        self.assertEqual(topo(*source, "0000:13:00.0", "mlx5_0", cwd=self.folder).returncode, 0)

    def test_bad_arguments(self):
        for args in (["--frobnicate"], ["why"], ["why", "GPU0"], ["dump"], ["check", "tree"],
                     ["--input"], ["--host", "-1"]):
            self.assertEqual(topo(*args).returncode, BAD, args)
        done = topo("--help")
        self.assertEqual(done.returncode, 0)
        for word in ("why", "check", "tree", "dump", "probe", "--svg", "--json", "--nccl-xml",
                     "--input", "--peer", "Exit status"):
            self.assertIn(word, done.stdout)
        one_line(self, topo("--input", self.machine("two-sockets"), "--svg", "/nowhere/x.svg",
                            cwd=self.folder), "/nowhere/x.svg")

    def test_machines_without_gpus_or_hcas(self):
        nothing = self.spill("none.xml", '<system version="1"><cpu numaid="0"/></system>')
        pci = '<pci busid="{}" class="{}" link_speed="32.0 GT/s PCIe" link_width="16">{}</pci>'
        gpu = pci.format("0000:01:00.0", "0x030200", '<gpu dev="0" sm="90"/>')
        hca = pci.format("0000:02:00.0", "0x020700",
                         '<nic><net name="mlx5_0" speed="400000" port="1"/></nic>')
        system = '<system version="1"><cpu numaid="0">{}</cpu></system>'
        only_gpu = self.spill("gpu.xml", system.format(gpu))
        only_hca = self.spill("hca.xml", system.format(hca))
        for source, words in ((nothing, ("no GPU found", "no HCA found")),
                              (only_gpu, ("no HCA found", "GPU0")),
                              (only_hca, ("no GPU found", "mlx5_0"))):
            done = topo("--input", source)
            self.assertEqual(done.returncode, 0, done.stderr)
            for word in words:
                self.assertIn(word, done.stdout)
            self.assertEqual(topo("--input", source, "check").returncode, 2)
            self.assertEqual(topo("--input", source, "tree").returncode, 0)
            self.assertEqual(topo("--input", source, "--svg", self.path("x.svg")).returncode, 0)
            json.loads(topo("--input", source, "--json").stdout)
            one_line(self, topo("--input", source, "why", "GPU7", "mlx5_0"), "GPU7")
        done = topo("--input", only_gpu, "check")
        self.assertRegex(done.stdout, r"FAIL +hca")


class ThisNode(Scratch):
    def test_every_command_works_wherever_it_runs(self):
        self.assertEqual(topo().returncode, 0)
        self.assertEqual(topo("tree").returncode, 0)
        self.assertIn(topo("check").returncode, (0, 1, 2))
        report = json.loads(topo("--json").stdout)
        self.assertEqual(report["schema"], "twinpath-topo/3")
        self.assertIn("circumstances", report)
        done = topo("dump", self.path("here.tar"))
        self.assertEqual(done.returncode, 0, done.stderr)
        again = json.loads(topo("--input", self.path("here.tar"), "--json").stdout)
        for key in ("gpus", "selection"):
            self.assertEqual([g.get("hca") for g in report[key]], [g.get("hca") for g in again[key]])

    def test_check_looks_at_what_a_job_would_meet(self):
        conf = self.spill("nccl.conf", "NCCL_IB_TIMEOUT=18\n")
        done = subprocess.run(
            ["sh", "-c", 'ulimit -Sn 200; exec "$@"', "-", TOPO, "--no-cuda", "check", "--json"],
            capture_output=True, text=True, timeout=60,
            env={**clean_environment(), "TWINPATH_FABRIC": "soft", "NCCL_CONF_FILE": conf,
                 "NCCL_IB_TIMEOUT": "22", "NCCL_NET_PLUGIN": self.path("none.so")})
        found = {c["check"]: c for c in json.loads(done.stdout)["checks"]
                 if c["group"] == "a job started here"}
        for check, level, word in (
                ("descriptors", "WARN", "200"), ("plugin", "FAIL", "none.so"),
                ("settings", "WARN", "says '18', '22' holds"), ("address", "OK", "found"),
                ("gdr-tried", "unknown", "--no-cuda")):
            with self.subTest(check):
                self.assertEqual(found[check]["level"], level)
                self.assertIn(word, found[check]["fact"])
        # A captured machine has no job to be started on.
        captured = self.replay("two-sockets", "check", "--json")
        self.assertNotIn("a job started here", captured.stdout)

    def test_an_anonymous_archive_has_the_findings_and_no_names(self):
        name, secret = os.uname().nodename, "10.201.202.0/24"
        env = {"TWINPATH_FABRIC": "soft", "NCCL_IB_ADDR_RANGE": secret, "USER": "mallory",
               "NCCL_TOPO_DUMP_FILE": "/home/mallory/topo.xml"}
        for words in ((), ("--anonymous",)):
            archive = self.path("bug.tar")
            done = topo("--no-cuda", "check", "--archive", archive, *words, env=env)
            self.assertIn(done.returncode, (0, 1, 2), done.stderr)
            with tarfile.open(archive) as tar:
                texts = {n: tar.extractfile(n).read().decode()
                         for n in ("check.txt", "check.json", "hosts.json")}
            self.assertEqual(texts["check.txt"], done.stdout)
            hosts = json.loads(texts["hosts.json"])
            everything = "".join(texts.values())
            for word in ("10.201.202", "mallory", f'"{name}"'):
                self.assertEqual(word in everything, not words, word)
            self.assertEqual(hosts[0]["name"], "host-1" if words else name)
            # It is a dump as well.
            self.assertEqual(topo("--input", archive, "tree").returncode, 0)

    def test_probe_says_why_it_did_not_try(self):
        done = topo("--input", self.machine("two-sockets"), "probe", cwd=self.folder)
        self.assertEqual((done.returncode, done.stdout),
                         (0, "not tried: the machine is a captured one\n"))
        self.assertEqual(topo("--no-cuda", "probe").stdout, "not tried: --no-cuda\n")

    def test_a_soft_hca_stands_where_its_configuration_puts_it(self):
        soft = {"TWINPATH_FABRIC": "soft", "TWINPATH_SOFT_HCAS": "soft0,speed=200"}
        report = json.loads(topo("--json", env=soft).stdout)
        mine = [h for h in report["hcas"] if h["name"] == "soft0"]
        self.assertEqual([(h["kind"], h["bus"], h["ports"][0]["gbit"]) for h in mine],
                         [("soft", None, 200)])
        # Its GID is the plugin's, and no table of a kernel's.
        checks = json.loads(topo("check", "--json", env=soft).stdout)["checks"]
        self.assertEqual([c for c in checks if c["check"] == "gid"], [])
        one_line(self, topo(env={**soft, "TWINPATH_SOFT_HCAS": "soft0,speed=x"}),
                 "TWINPATH_SOFT_HCAS")


class SharedSet(unittest.TestCase):
    """Captured machines, where they are; their classes are tested with the readers."""

    def test_every_file_gives_a_report(self):
        files = glob.glob(SHARED + "/hwloc/*.xml") + glob.glob(SHARED + "/nccl/*.xml")
        if not files:
            self.skipTest(f"no captured machines in {SHARED}")
        for path in files:
            with self.subTest(os.path.basename(path)), tempfile.TemporaryDirectory() as folder:
                done = topo("--input", path)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                for line in done.stdout.splitlines():
                    self.assertLessEqual(len(line), 120, line)
                self.assertIn(topo("--input", path, "check").returncode, (0, 1, 2))
                self.assertEqual(topo("--input", path, "--svg", folder + "/x.svg").returncode, 0)
                width = ElementTree.parse(folder + "/x.svg").getroot().get("width")
                self.assertLessEqual(float(width), 1600)


if __name__ == "__main__":
    unittest.main()
