"""twinpath-info: fabrics with reasons, options with origins, and the table of plugin/SETTINGS.md."""
import json
import os
import shutil
import tempfile
import unittest

from tool import INFO, SOURCE_ROOT, run

BEGIN, END = "<!-- options:begin -->\n", "<!-- options:end -->\n"


def info_json(env=None):
    done = run(INFO, "--json", env=env)
    return done, json.loads(done.stdout)


class Fabrics(unittest.TestCase):
    def test_the_soft_hca_is_always_there_but_never_silently_used(self):
        done, report = info_json(env={"NCCL_IB_HCA": ""})
        self.assertEqual(done.returncode, 0, done.stderr)
        verbs, soft = report["fabrics"]
        self.assertEqual((verbs["fabric"], soft["fabric"]), ("verbs", "soft"))
        self.assertEqual([d["name"] for d in soft["devices"]], ["soft0"])
        self.assertFalse(soft["selected"])
        if not verbs["devices"]:
            self.assertTrue(verbs["why_not"])

    def test_settings_choose_devices(self):
        _, report = info_json(env={"TWINPATH_FABRIC": "soft", "TWINPATH_SOFT_HCAS": "a,b"})
        soft = report["fabrics"][1]
        self.assertTrue(soft["selected"])
        self.assertEqual([d["name"] for d in soft["devices"]], ["a", "b"])
        guids = [d["guid"] for d in soft["devices"]]
        self.assertEqual(len(set(guids)), 2)

    def test_rail_and_plane_are_shown_as_named(self):
        env = {"TWINPATH_FABRIC": "soft", "TWINPATH_SOFT_HCAS": "a,b",
               "NCCL_IB_HCA": "=a::7:2,b"}
        _, report = info_json(env=env)
        places = [(d["rail_id"], d["plane_id"]) for d in report["fabrics"][1]["devices"]]
        self.assertEqual(places, [(7, 2), (-1, -1)])
        text = run(INFO, env=env).stdout
        self.assertIn(" 7/2 ", text)
        self.assertIn(" -/- ", text)

    def test_text_says_what_to_set_when_nothing_is_found(self):
        done = run(INFO)
        self.assertEqual(done.returncode, 0)
        self.assertIn("Fabric verbs", done.stdout)
        self.assertIn("soft0", done.stdout)
        if "(used with these settings)" not in done.stdout:  # no adapter here
            self.assertIn("Set TWINPATH_FABRIC=soft to use", done.stdout)
        # Not what would not help.
        done = run(INFO, env={"NCCL_IB_HCA": "nosuch"})
        self.assertIn("The reasons are above", done.stdout)
        self.assertNotIn("Set TWINPATH_FABRIC=soft", done.stdout)

    def test_without_the_software_adapters_library_nobody_is_sent_to_it(self):
        """A copy of the program alone: no adapter, or no libibverbs either."""
        if "no device" not in run(INFO).stdout.partition("Fabric soft")[0]:
            self.skipTest("this machine has an adapter")
        with tempfile.TemporaryDirectory() as folder:
            alone = shutil.copy(INFO, folder)
            with open(f"{folder}/libibverbs.so.1", "wb"):
                pass
            for env, said in (({}, "no usable RDMA adapter was found: "),
                              ({"LD_LIBRARY_PATH": folder}, "no RDMA adapter was found: ")):
                with_it = run(INFO, env=env)
                self.assertRegex(with_it.stdout, f"{said}.*TWINPATH_FABRIC=soft")
                without = run(alone, env=env)
                self.assertEqual(without.returncode, 0, without.stderr)
                self.assertIn(said, without.stdout)
                self.assertNotIn("TWINPATH_FABRIC=soft", without.stdout)
                # It is looked at although nobody has set it.
                self.assertIn("TWINPATH_FABRIC=auto, the default, uses real", without.stdout)
                self.assertNotIn("unset TWINPATH_FABRIC", without.stdout)


class Files(unittest.TestCase):
    """Settings that NCCL takes from its files and a job's plugin then finds in the environment."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w") as out:
            out.write(text)
        return path

    def soft(self, env):
        done, report = info_json(env=env)
        fabric = report["fabrics"][1]
        self.assertTrue(fabric["selected"], report)
        return done, report, [d["name"] for d in fabric["devices"]]

    def test_the_file_is_read_and_named_and_the_environment_goes_before(self):
        conf = self.file("nccl.conf", "# all jobs\nTWINPATH_FABRIC=soft\nTWINPATH_SOFT_HCAS=a,b\n"
                         "NCCL_IB_HCA=b\nNCCL_IB_HCA=a\nTWINPATH_FABRC=soft\n")
        done, report, devices = self.soft({"NCCL_CONF_FILE": conf})
        self.assertEqual(devices, ["b"])
        self.assertEqual(report["circumstances"]["files"]["NCCL_IB_HCA"], conf)
        origins = {o["name"]: o["origin"] for o in report["options"]}
        self.assertEqual(origins["TWINPATH_SOFT_HCAS"], conf)
        self.assertIn("TWINPATH_FABRC is set but no such option exists; did you mean "
                      "TWINPATH_FABRIC?", done.stderr)
        _, report, devices = self.soft({"NCCL_CONF_FILE": conf, "NCCL_IB_HCA": "a"})
        self.assertEqual(devices, ["a"])
        origins = {o["name"]: o["origin"] for o in report["options"]}
        self.assertEqual(origins["NCCL_IB_HCA"], "environment")
        self.assertIn(f"NCCL_IB_HCA=b ({conf})", run(INFO, env={"NCCL_CONF_FILE": conf}).stdout)

    def test_the_home_folder_has_one_too(self):
        conf = self.file(".nccl.conf", "TWINPATH_FABRIC=soft\nTWINPATH_SOFT_HCAS=home\n")
        _, _, devices = self.soft({"HOME": self.folder.name})
        self.assertEqual(devices, ["home"])
        other = self.file("other", "TWINPATH_FABRIC=soft\n")
        self.assertEqual(self.soft({"HOME": self.folder.name, "NCCL_CONF_FILE": other})[2],
                         ["soft0"])
        # What NCCL up to 2.29 does is another thing, unless the user database says the same.
        if os.path.expanduser("~root") != self.folder.name:
            self.assertIn(f"{conf} is taken: NCCL up to 2.29 reads",
                          run(INFO, env={"HOME": self.folder.name}).stderr)

    def test_a_file_that_is_none_is_told(self):
        fifo = os.path.join(self.folder.name, "fifo")
        os.mkfifo(fifo)
        for path, why in ((fifo, "is a FIFO, not a file"), (fifo + "x", "is not there"),
                          ("/dev/zero", "is a device, not a file")):
            self.assertIn(why, run(INFO, env={"NCCL_CONF_FILE": path}).stderr)


class Options(unittest.TestCase):
    def option(self, report, name):
        return next(o for o in report["options"] if o["name"] == name)

    def test_value_default_and_origin(self):
        _, report = info_json(env={"NCCL_IB_TIMEOUT": "14"})
        self.assertEqual(self.option(report, "NCCL_IB_TIMEOUT")["value"], "14")
        self.assertEqual(self.option(report, "NCCL_IB_TIMEOUT")["origin"], "environment")
        self.assertEqual(self.option(report, "NCCL_IB_TIMEOUT")["default"], "20")
        self.assertEqual(self.option(report, "NCCL_IB_SL")["origin"], "default")

    def test_a_refused_value_is_named_and_fails(self):
        done = run(INFO, "--options", env={"TWINPATH_FABRIC": "nonsense"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("nonsense", done.stderr)
        self.assertIn("refused", done.stdout)

    def test_bad_arguments(self):
        self.assertEqual(run(INFO, "--frobnicate").returncode, 2)
        self.assertEqual(run(INFO, "--check-settings").returncode, 2)
        self.assertEqual(run(INFO, "--help").returncode, 0)


class Settings(unittest.TestCase):
    def setUp(self):
        self.file = os.path.join(tempfile.mkdtemp(), "SETTINGS.md")

    def tearDown(self):
        for left in os.listdir(os.path.dirname(self.file)):
            os.remove(os.path.join(os.path.dirname(self.file), left))
        os.rmdir(os.path.dirname(self.file))

    def write(self, text):
        with open(self.file, "w", encoding="utf-8") as out:
            out.write(text)

    def test_update_then_check(self):
        self.write("# Title\n" + BEGIN + "old\n" + END + "tail\n")
        stale = run(INFO, "--check-settings", self.file)
        self.assertEqual(stale.returncode, 1)
        self.assertIn("its line 1 is\n  old", stale.stderr)
        self.assertEqual(run(INFO, "--update-settings", self.file).returncode, 0)
        self.assertEqual(run(INFO, "--check-settings", self.file).returncode, 0)
        with open(self.file, encoding="utf-8") as f:
            text = f.read()
        self.assertTrue(text.startswith("# Title\n" + BEGIN))
        self.assertTrue(text.endswith(END + "tail\n"))
        self.assertIn("TWINPATH_FABRIC", text)
        self.assertEqual(text, "# Title\n" + BEGIN + run(INFO, "--markdown").stdout + END +
                         "tail\n")

    def test_a_file_without_markers_is_left_alone(self):
        self.write("nothing here\n")
        done = run(INFO, "--update-settings", self.file)
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no lines", done.stderr)
        with open(self.file, encoding="utf-8") as f:
            self.assertEqual(f.read(), "nothing here\n")
        self.assertEqual(run(INFO, "--check-settings", "/nowhere/SETTINGS.md").returncode, 1)

    def test_the_older_names_work(self):
        self.write(BEGIN + END)
        self.assertEqual(run(INFO, "--update-readme", self.file).returncode, 0)
        self.assertEqual(run(INFO, "--check-readme", self.file).returncode, 0)
        self.assertEqual(run(INFO, "--check-settings", self.file).returncode, 0)

    def test_the_table_of_this_tree_is_up_to_date(self):
        path = os.path.join(SOURCE_ROOT, "plugin", "SETTINGS.md")
        done = run(INFO, "--check-settings", path)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
