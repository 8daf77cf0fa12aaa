"""The Debian packages, without touching this machine's: they are unpacked, and installed and removed with an
empty root of their own."""
import gzip
import os
import pathlib
import re
import shutil
import tempfile
import time
import unittest

from installed import BUILD, SOURCE, Works, expected, library_folder, present, run

# Opened at run time -> the package that has it; none for what NVIDIA brings and for a user's plugin.
OPENED = {"libibverbs.so.1": "libibverbs1", "libhwloc.so.15": "libhwloc15", "libcuda.so.1": None,
          "libgdrapi.so.2": None, "libnccl.so.2": None}
# Of the soft HCA, beside those that need them; the plugin itself, which is open before what needs it.
OWN = {"libibverbs.so.1", "libmlx5.so.1", "libnccl-net-twinpath.so"}
MODEL_SAYS = b"soft HCA: membarrier"  # plugin/fabric/soft/hca.cc


def as_debian_has_it(files):
    """tools/package/files with the names that packages of Debian use."""
    out = {}
    for name, leads in files.items():
        name = name.replace("doc/twinpath/LICENSE", "doc/twinpath/copyright")
        gz = ".gz" if "/man/" in name or name.endswith("/CHANGELOG.md") else ""
        out[name + gz] = leads and leads + gz
    out["share/doc/twinpath/changelog.gz"] = out["share/lintian/overrides/twinpath"] = None
    out["share/doc/twinpath-softhca"] = "share/doc/twinpath"
    return out


def elf_files(prefix):
    return [p for p in prefix.rglob("*")
            if p.is_file() and not p.is_symlink() and p.read_bytes()[:4] == b"\x7fELF"]


class Package(Works, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="twinpath-deb-"))
        cls.addClassCleanup(shutil.rmtree, cls.root)
        done = run(SOURCE / "tools/package/deb", "--build", BUILD, "--output", cls.root, "--quick", limit=120)
        cls.made = [pathlib.Path(line) for line in done.stdout.split()]
        cls.package, cls.soft, *cls.symbols = cls.made
        run("dpkg-deb", "-x", cls.package, cls.root / "alone")
        for package in (cls.package, cls.soft):
            run("dpkg-deb", "-x", package, cls.root / "tree")
        for package in cls.symbols:
            run("dpkg-deb", "-x", package, cls.root / "symbols")
        cls.prefix = cls.root / "tree/usr"
        cls.version = run(BUILD / "tools/net_perf/net_perf", "--version").stdout.split(" ", 1)[1].strip()

    @staticmethod
    def field(package, name):
        return run("dpkg-deb", "-f", package, name).stdout.strip()

    def names_in(self, package, field):
        return {re.match(r"[^ ]+", part.strip())[0] for part in self.field(package, field).split(",") if part}

    def test_files_are_those_listed(self):
        self.assertEqual(sorted(os.listdir(self.root / "tree")), ["usr"])
        self.assertEqual(present(self.prefix), as_debian_has_it(expected(self.prefix)))
        words = (SOURCE / "LICENSE").read_text().split("\n\n", 2)[2].split()
        said = (self.prefix / "share/doc/twinpath/copyright").read_text().split()
        self.assertEqual([w for w in said if w != "."][-len(words):], words)
        for name in ("net_perf", "twinpath-net-perf"):
            page = gzip.decompress((self.prefix / f"share/man/man1/{name}.1.gz").read_bytes())
            self.assertIn(b".TH TWINPATH\\-NET\\-PERF 1", page)

    def test_the_package_of_the_plugin_has_no_simulator(self):
        alone = self.root / "alone/usr"
        self.assertEqual([name for name in present(alone) if "softhca" in name], [])
        self.assertEqual({name for name in set(present(self.prefix)) - set(present(alone)) if "softhca" not in name},
                         set())
        for path in elf_files(alone):
            self.assertNotIn(MODEL_SAYS, path.read_bytes(), path)
        self.assertIn(MODEL_SAYS, (library_folder(self.prefix) / "twinpath/libtwinpath-softhca.so").read_bytes())
        # It works; and names what is missing where the adapter is asked for.
        lib = library_folder(alone)
        missing = os.path.realpath(lib / "twinpath") + "/libtwinpath-softhca.so"
        done = run(alone / "bin/twinpath-net-perf", "--timeout", "50", check=False, env={"TWINPATH_FABRIC": "soft"})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(missing, done.stdout + done.stderr)
        self.assertIn("package twinpath-softhca", done.stdout + done.stderr)
        done = run(alone / "bin/twinpath-topo", env={"TWINPATH_FABRIC": "soft"}, check=False)
        self.assertIn(missing, done.stderr)
        for tool in ("twinpath-topo", "twinpath-info"):
            done = run(alone / "bin" / tool, env={"TWINPATH_FABRIC": "auto"})
            self.assertEqual(done.stderr, "", tool)
            self.assertNotIn("Set TWINPATH_FABRIC=soft", done.stdout)
        # What is installed of either is of one version.
        self.assertIn(f"twinpath (= {self.field(self.package, 'Version')})", self.field(self.soft, "Depends"))

    def test_the_unit_starts_the_exporter_that_is_installed(self):
        unit = self.prefix / "lib/systemd/system/twinpath-exporter.service"
        self.assertRegex(unit.read_text(), r"(?m)^ExecStart=/usr/bin/twinpath-exporter \$OPTIONS$")
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd")
        here = self.root / unit.name  # systemd wants the program to be there
        here.write_text(unit.read_text().replace("/usr/bin", str(self.prefix / "bin")))
        done = run("systemd-analyze", "verify", "--man=no", here, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_symbols_are_those_of_the_programs(self):
        built = [re.search(r"Build ID: (\w+)", run("readelf", "-n", p).stdout)[1] for p in elf_files(self.prefix)
                 if p.name != "libnccl-net-again.so"]  # has no code
        debug = self.root / "symbols/usr/lib/debug/.build-id"
        self.assertEqual(sorted(built), sorted(p.parent.name + p.stem for p in debug.glob("*/*.debug")))
        self.assertEqual(sorted(built), sorted(id for p in self.symbols for id in self.field(p, "Build-Ids").split()))
        for path in elf_files(self.prefix):
            self.assertNotRegex(run("readelf", "-SW", path).stdout, r"\.debug_info|\.symtab", path)

    def test_everything_belongs_to_root_and_is_readable(self):
        for line in "".join(run("dpkg-deb", "-c", package).stdout for package in self.made).splitlines():
            self.assertRegex(line, r"^(drwxr-xr-x|-rw-r--r--|-rwxr-xr-x|lrwxrwxrwx) root/root ")
            if re.search(r"\.so(\.\d+)?$", line) and " -> " not in line:
                self.assertRegex(line, "^-rw-r--r-- ")

    def test_lintian(self):
        if not shutil.which("lintian"):
            self.skipTest("no lintian")
        # What is packed here was not built by the flags that the package is built by, and is packed quickly.
        done = run("lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning", "--suppress-tags",
                   "hardening-no-fortify-functions,hardening-no-bindnow,hardening-no-relro", self.package,
                   self.soft, check=False, limit=120)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_sources_without_a_commit_need_a_version(self):
        tree = self.root / "sources"
        (tree / "tools").mkdir(parents=True)
        shutil.copytree(SOURCE / "tools/package", tree / "tools/package")
        shutil.copy(SOURCE / "meson.build", tree)
        commit = tree / "tools/package/commit"  # unpacked from an archive of a commit it would know it
        commit.write_text(re.sub(r"(?m)^archived=.*", "archived='$Format$'", commit.read_text()))
        done = run(tree / "tools/package/deb", "--build", BUILD, "--output", self.root / "none", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"neither a git checkout nor an archive(.|\n)*name it, as in --version 0\.")
        self.assertFalse((self.root / "none").exists())
        done = run(SOURCE / "tools/package/deb", "--build", BUILD, "--version", "1 2", check=False)
        self.assertIn("--version 1 2: no version of a Debian package", done.stderr)

    def test_packed_again_it_is_the_same_file(self):
        # Later, by somebody with another umask and zone; the clock of files that are made on the way
        # goes on by itself.
        made = max(os.stat(package).st_mtime for package in self.made)
        while int(time.time()) <= int(made) + 1:
            time.sleep(0.1)
        again = self.root / "again"
        environment = {"TZ": "Asia/Tokyo", "LC_ALL": "C"}
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        run(SOURCE / "tools/package/deb", "--build", BUILD, "--output", again, "--quick", limit=120,
            env=environment)
        for package in self.made:
            self.assertEqual((again / package.name).read_bytes(), package.read_bytes())
        for line in run("dpkg-deb", "-c", self.package, env={"TZ": "UTC"}).stdout.splitlines():
            self.assertEqual(line.split()[3:5], self.moment().split())

    @staticmethod
    def moment():
        epoch = int(run(SOURCE / "tools/package/commit", "--epoch").stdout)
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(epoch))

    def test_version_says_whether_it_is_a_release(self):
        declared = re.search(r"version: '([^']*)'", (SOURCE / "meson.build").read_text())[1]
        version, architecture = self.field(self.package, "Version"), self.field(self.package, "Architecture")
        self.assertRegex(version, rf"^{re.escape(declared)}(~git[0-9]+\.[0-9a-z]+(\.dirty)?)?$")
        self.assertEqual([p.name for p in self.made], [
            f"{name}_{version}_{architecture}.deb"
            for name in ("twinpath", "twinpath-softhca", "twinpath-dbgsym", "twinpath-softhca-dbgsym")])
        order = run("dpkg", "--compare-versions", f"{declared}~git20261122.0123456789ab", "lt", declared, check=False)
        self.assertEqual(order.returncode, 0)

    def test_they_depend_on_what_their_programs_need(self):
        whole = set(present(self.prefix))
        alone = set(present(self.root / "alone/usr"))
        self.check_needs(self.package, alone, {"ibverbs-providers"}, set())
        self.check_needs(self.soft, whole - alone, None, {"twinpath"})

    def check_needs(self, package, files, recommended, others):
        """Of the package's `files`; `recommended` beside what is opened, or None: nothing is."""
        linked, opened = set(), set()
        lib = library_folder(self.prefix)
        for path in elf_files(self.prefix):
            if str(path.relative_to(self.prefix)) not in files:
                continue
            data = path.read_bytes()
            needed = set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", path).stdout))
            found = dict(re.findall(r"(\S+) => (/\S+)", run(
                "ldd", path, env={"LD_LIBRARY_PATH": str(lib / "twinpath/softhca")}).stdout))
            # ldd shows the loader itself, which libc brings, by its path only.
            linked |= {found[name] for name in needed - OWN if not name.startswith("ld-linux")}
            opened |= {n.decode() for n in re.findall(rb"\0(lib[a-z0-9+_-]+\.so\.\d+)\0", data)} - needed
        owners = set()
        for path in linked:
            # Debian merges /lib into /usr/lib and lists files under either.
            names = [path, os.path.realpath(path), path.removeprefix("/usr"),
                     os.path.realpath(path).removeprefix("/usr")]
            said = run("dpkg", "-S", *names, check=False).stdout
            owners |= {said.split(":")[0]} if said else {f"{path} of no package"}
        self.assertEqual(self.names_in(package, "Depends"), owners | others)
        opened -= {n for n in opened if n.startswith(("libgcc_s", "libc.so"))}  # libstdc++'s own
        self.assertLessEqual(opened - OWN, set(OPENED), "opened at run time, and no package is known")
        if recommended is not None:
            self.assertEqual(self.names_in(package, "Recommends"), recommended | {OPENED[n] for n in opened if OPENED.get(n)})

    def test_it_is_installed_and_removed_without_a_trace(self):
        root = self.root / "machine"
        (root / "var/lib/dpkg/updates").mkdir(parents=True)
        (root / "var/lib/dpkg/info").mkdir()
        (root / "var/lib/dpkg/status").touch()
        # An empty machine has nothing that it depends on; and this may not be root.
        dpkg = ["dpkg", "--root", root, "--log", root / "var/lib/dpkg/log", "--force-depends", "--force-not-root",
                "--force-bad-path", "--force-script-chrootless"]
        run(*dpkg, "--install", self.package, self.soft)
        enabled = root / "etc/systemd/system/multi-user.target.wants/twinpath-exporter.service"
        enabled.parent.mkdir(parents=True)
        enabled.symlink_to("/usr/lib/systemd/system/twinpath-exporter.service")
        installed = present(root / "usr")
        self.assertEqual(installed, present(self.prefix))
        for name in ("twinpath", "twinpath-softhca"):
            self.assertIn("ok installed", run("dpkg", "--root", root, "--status", name).stdout)
        # The plugin stays without the adapter.
        run(*dpkg, "--remove", "twinpath-softhca")
        self.assertEqual(present(root / "usr"), present(self.root / "alone/usr"))
        run(*dpkg, "--remove", "twinpath")
        left = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_symlink() or not p.is_dir()]
        self.assertEqual([p for p in left if not p.startswith("var")], [])
        self.assertFalse((root / "usr").exists())
        self.assertEqual(run("dpkg", "--root", root, "--status", "twinpath", check=False).returncode, 1)


if __name__ == "__main__":
    missing = [p for p in ("dpkg", "dpkg-deb", "dpkg-shlibdeps") if shutil.which(p) is None]
    if missing:
        print(f"skipped: no {', '.join(missing)}: Debian packages are made on Debian (dpkg-dev)")
        raise SystemExit(77)
    unittest.main(verbosity=2)
