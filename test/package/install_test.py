"""meson install into an empty folder: the files are those of tools/package/files, and they work from
there."""
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import unittest

from installed import (BUILD, CLEAN, SHORT, SOURCE, TOOLS, Works, expected, folder, in_build, meson_install, present,
                       run)


class Install(Works, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="twinpath-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.root)
        cls.prefix = meson_install(cls.root)
        cls.version = run(BUILD / "tools/net_perf/net_perf", "--version").stdout.split(" ", 1)[1].strip()

    def test_files_are_those_listed(self):
        self.assertEqual(present(self.prefix), expected(self.prefix))

    def test_documents_lead_to_files_that_are_there(self):
        documents = list((self.prefix / "share/doc/twinpath").rglob("*.md"))
        self.assertGreater(len(documents), 10)
        for document in documents:
            for link in re.findall(r"\]\(([^)#:]+)", document.read_text()):
                self.assertTrue((document.parent / link).is_file(), f"{document}: {link}")

    def test_nothing_names_this_machine(self):
        """Folders of the build have no place in what is installed, libraries' search paths least."""
        for path in self.prefix.rglob("*"):
            if path.is_file() and not path.is_symlink():
                head = path.read_bytes()
                if head.startswith(b"\x7fELF"):
                    dynamic = run("readelf", "-d", path).stdout
                    self.assertNotRegex(dynamic, "R(UN)?PATH", path)
                else:
                    self.assertNotIn(str(BUILD).encode(), head, path)

    def test_version_is_that_of_the_project(self):
        declared = re.search(r"version: '([^']*)'", (SOURCE / "meson.build").read_text())[1]
        self.assertRegex(self.version, rf"^{re.escape(declared)} \((no commit|[0-9a-f]{{12}}(-dirty)?)\)$")

    def test_man_pages_have_what_the_help_has(self):
        for name in TOOLS + (["twinpath-gda-perf"] if in_build("gda_perf") else []):
            page = (self.prefix / f"share/man/man1/{name}.1").read_text().replace("\\-", "-")
            text = run(self.prefix / "bin" / name, "--help").stdout
            options = re.search(r"(?ms)^(?:Options:\n)?(  --?[a-z].*?)\n\n", text)[1]
            for option in re.findall(r"^  (--?[^ {\n]*)", options, re.M):
                self.assertRegex(page, rf"\n\.B {re.escape(option)}( .*)?\n[^.\n]", name)
            for heading in (".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH SEE ALSO"):
                self.assertIn(heading, page, name)
            if name in SHORT:
                self.assertNotRegex(page, rf"(?<!-)\b{SHORT[name]} ")
            self.check_roff(self.prefix / f"share/man/man1/{name}.1")
        settings = self.prefix / "share/man/man7/twinpath.7"
        documented = run(self.prefix / "bin/twinpath-info", "--markdown").stdout
        page = settings.read_text()
        for cell in re.findall(r"^\| (`[A-Z_0-9]*`(?:, `[A-Z_0-9]*`)*) \|", documented, re.M):
            for name in re.findall("[A-Z_0-9]+", cell):
                self.assertIn(f"\n.B {name}\n", page)
        self.check_roff(settings)

    def check_roff(self, page):
        if shutil.which("groff"):
            done = run("groff", "-man", "-ww", "-z", "-Tutf8", page)
            self.assertEqual(done.stderr, "", page)


class Commit(unittest.TestCase):
    """tools/package/commit in a checkout, in an archive, and in neither."""

    def git(self, *words):
        return run("git", "-C", self.tree, "-c", "user.name=n", "-c", "user.email=e@example.org", *words)

    def run_in(self, tree, *words):
        return run(tree / "tools/package/commit", *words).stdout.strip()

    def setUp(self):
        if not shutil.which("git"):
            self.skipTest("no git")
        context = folder()
        self.root = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        self.tree = self.root / "tree"
        (self.tree / "tools/package").mkdir(parents=True)
        for name in ("commit", "dist"):
            shutil.copy(SOURCE / "tools/package" / name, self.tree / "tools/package" / name)
        shutil.copy(SOURCE / ".gitattributes", self.tree)

    def archive(self, into):
        """As somebody unpacks it."""
        into.mkdir(parents=True)
        data = subprocess.run(["git", "-C", self.tree, "archive", "HEAD"], check=True, env=CLEAN,
                              stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", into], input=data, check=True)
        return into

    def test_an_archive_does_not_know_its_branch(self):
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "one")
        self.git("tag", "v0.1.0")
        packed = []
        for branch in ("first", "release/2.3"):
            self.git("checkout", "-q", "-b", branch)
            into = self.archive(self.root / branch.replace("/", "-"))
            run(self.tree / "tools/package/dist", env={"MESON_DIST_ROOT": str(into)})
            packed.append((into / "tools/package/commit").read_text())
            self.assertEqual(self.run_in(into, "--package", "0.1.0"), "0.1.0")
            self.assertEqual(self.run_in(into, "--epoch"), self.run_in(self.tree, "--epoch"))
        self.assertEqual(*packed)
        self.assertIn(" tag: v0.1.0'", packed[0])

    def test_commit_and_package_version(self):
        self.assertEqual(self.run_in(self.tree), "no commit")
        done = run(self.tree / "tools/package/commit", "--package", "0.1.0", check=False)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("neither a git checkout nor an archive of one", done.stderr)
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "one")
        commit = self.git("rev-parse", "HEAD").stdout[:12]
        self.assertEqual(self.run_in(self.tree), commit)
        self.assertRegex(self.run_in(self.tree, "--package", "0.1.0"), rf"^0\.1\.0~git20\d{{6}}\.{commit}$")

        # An archive, within another project's checkout too.
        within = self.archive(self.tree / "archive")
        self.assertEqual(self.run_in(within), commit)
        self.assertIn("~git20", self.run_in(within, "--package", "0.1.0"))
        shutil.rmtree(within)

        self.git("tag", "v0.1.0")
        self.assertEqual(self.run_in(self.tree, "--package", "0.1.0"), "0.1.0")
        self.assertIn("~git", self.run_in(self.tree, "--package", "0.1"))
        self.assertEqual(self.run_in(self.archive(self.root / "released"), "--package", "0.1.0"), "0.1.0")

        with open(self.tree / "tools/package/commit", "a", encoding="ascii") as out:
            out.write("# changed\n")
        self.assertEqual(self.run_in(self.tree), commit + "-dirty")
        self.assertRegex(self.run_in(self.tree, "--package", "0.1.0"), r"^0\.1\.0~git.*\.dirty$")


class Archive(unittest.TestCase):
    @staticmethod
    def dist(**env):
        run(os.environ["MESON"], "dist", "-C", BUILD, "--no-tests", "--allow-dirty", "--formats", "xztar",
            env=env, limit=120)
        archives = sorted((BUILD / "meson-dist").glob("twinpath-*.tar.xz"), key=lambda p: p.stat().st_mtime)
        return archives[-1]

    def test_an_archive_bears_the_time_that_is_asked_for(self):
        if not (SOURCE / ".git").exists():
            self.skipTest("no git checkout")
        with tarfile.open(self.dist(SOURCE_DATE_EPOCH="1700000000")) as archive:
            self.assertEqual({entry.mtime for entry in archive}, {1700000000})
        # Nothing of the moment, nor of the branch, is in it.
        first = self.dist().read_bytes()
        time.sleep(1.1)
        self.assertEqual(self.dist().read_bytes(), first)

    def test_meson_dist_has_every_file_and_knows_its_commit(self):
        commit = run(SOURCE / "tools/package/commit").stdout.strip().removesuffix("-dirty")
        if commit == "no commit" or not (SOURCE / ".git").exists():
            self.skipTest("no git checkout")
        with folder() as into:
            archive = self.dist()
            run("tar", "-xJf", archive, "-C", into)
            (tree,) = into.iterdir()
            self.assertEqual(run(tree / "tools/package/commit").stdout.strip(), commit)
            tracked = run("git", "-c", f"safe.directory={SOURCE}", "-C", SOURCE, "ls-tree", "-r",
                          "--name-only", "HEAD").stdout.split()
            for name in tracked:
                self.assertTrue((tree / name).exists(), name)


class Recipes(unittest.TestCase):
    def test_spec_and_changelog_have_the_version_of_the_project(self):
        declared = re.search(r"version: '([^']*)'", (SOURCE / "meson.build").read_text())[1]
        spec = (SOURCE / "tools/package/twinpath.spec").read_text()
        self.assertEqual(re.search(r"^Version: *(.*)$", spec, re.M)[1], declared)
        first = re.search(r"^## (.*)$", (SOURCE / "tools/package/CHANGELOG.md").read_text(), re.M)[1]
        self.assertRegex(first, rf"^{re.escape(declared)} \((unreleased|20\d\d-\d\d-\d\d)\)$")
        # Released is what has a day.
        if run(SOURCE / "tools/package/commit", "--package", declared).stdout.strip() == declared:
            self.assertNotIn("unreleased", first)

    def test_a_release_is_a_commit_with_a_tag(self):
        if not shutil.which("git"):
            self.skipTest("no git")
        with folder() as root:
            tree = root / "tree"
            (tree / "tools").mkdir(parents=True)
            shutil.copytree(SOURCE / "tools/package", tree / "tools/package")
            for name in ("meson.build", ".gitattributes"):
                shutil.copy(SOURCE / name, tree)
            changes = tree / "tools/package/CHANGELOG.md"
            changes.write_text("# Changes\n\n## 0.9.0 (unreleased)\n\n- # of new\n\n## 0.8.0 (2026-01-01)\n\n- old\n")
            env = {f"GIT_{who}_{what}": f"{who}@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

            def git(*words):
                return run("git", "-C", tree, *words, env=env).stdout.strip()

            def release(*words):
                done = run(tree / "tools/package/release", "--no-build", *words, env=env, check=False)
                return done.returncode, done.stdout + done.stderr

            git("init", "-q")
            git("add", "-A")
            self.assertIn("not clean", release("0.9.1")[1])
            git("commit", "-q", "-m", "one")
            for wrong in ("0.9", "v0.9.1", "0.09.1"):
                self.assertIn(f"and not {wrong}", release(wrong)[1])
            self.assertEqual(release("0.9.1")[0], 0)
            self.assertEqual(git("status", "--porcelain"), "")
            self.assertEqual(git("describe"), "v0.9.1")
            self.assertEqual(run(tree / "tools/package/commit", "--package", "0.9.1").stdout, "0.9.1\n")
            self.assertRegex(changes.read_text(), r"\n## 0\.9\.1 \(20\d\d-\d\d-\d\d\)\n\n- # of new\n\n## 0\.8\.0")
            self.assertIn("version: '0.9.1'", (tree / "meson.build").read_text())
            self.assertRegex((tree / "tools/package/twinpath.spec").read_text(), r"(?m)^Version: +0\.9\.1$")
            told = git("tag", "-l", "--format=%(contents)", "v0.9.1")
            self.assertEqual(told, "Twinpath 0.9.1\n\n- # of new")
            self.assertIn("there is a tag v0.9.1", release("0.9.1")[1])
            self.assertIn("v0.9.1 was released, and 0.9.0 is older", release("0.9.0")[1])
            self.assertIn("which is not unreleased", release("0.9.2")[1])

    def test_documents_name_files_that_exist(self):
        for document in (SOURCE / ".github").rglob("*.*"):
            text = document.read_text()
            for name in re.findall(r"(?:tools|test|plugin|\.ci|\.github)/[\w./-]*\w", text):
                self.assertTrue((SOURCE / name).exists(), f"{document} names {name}")
        self.assertRegex((SOURCE / ".github/workflows/ci.yml").read_text(), r"(?m)^ *- run: \.ci/run$")


if __name__ == "__main__":
    unittest.main(verbosity=2)
