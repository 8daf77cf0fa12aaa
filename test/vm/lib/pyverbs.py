"""Part of test/vm/mlx5: a module of rdma-core's own Python tests (python3-pyverbs) on mlx5_0.

usage: pyverbs.py FOLDER EXPECTED MODULE

FOLDER is where the packages are unpacked.  EXPECTED has a line "NAME: why" for each test that does
not pass (MODULE.CLASS.TEST), and for each module of which none does.  Prints a line when a test
begins and when it ends.  Fails where another test fails, where one of the list passes or is not
there, and where none of a module passes that is not in the list.
"""
import pathlib
import sys
import types
import unittest


class Ends(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.passed, self.failed, self.skips = set(), {}, set()

    def startTest(self, test):
        super().startTest(test)
        print(name_of(test), end=" ... ", flush=True)

    def addSuccess(self, test):
        print("passes")
        self.passed.add(name_of(test))

    def addSkip(self, test, reason):
        print("skipped:", reason)
        self.skips.add(name_of(test))

    def addError(self, test, err):
        why = self._exc_info_to_string(err, test)
        print("fails:", why)
        self.failed[name_of(test)] = why

    addFailure = addError

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addError(test, err)


def name_of(test):
    return test.id().removeprefix("tests.")


def ends_of(folder, module):
    # The package itself would read all modules, for seconds in an emulator.
    package = types.ModuleType("tests")
    package.__path__ = [str(folder)]
    sys.modules["tests"] = package
    from args_parser import parser
    parser.parse_args()
    parser.args.update(dev="mlx5_0", port=1)
    import tests.utils  # first: it and mlx5_base import each other
    import tests.mlx5_base
    # The function shows QEMU's numbers.
    tests.mlx5_base.is_mlx5_dev = lambda context: True
    ends = Ends()
    unittest.defaultTestLoader.loadTestsFromName("tests." + module).run(ends)
    ends.passed -= set(ends.failed)  # whose sub-tests failed
    return ends


def wrong_with(module, ends, expected):
    mine = {name for name in expected if name.startswith(module + ".")}
    wrong = [f"{name} fails" for name in ends.failed if name not in expected]
    wrong += [f"{name} passes, and the list has it" for name in sorted(ends.passed & mine)]
    wrong += [f"there is no {name}" for name in sorted(mine - ends.passed - set(ends.failed) - ends.skips)]
    if not ends.passed and module not in expected:
        wrong.append("none passes, and the list has not the module")
    if ends.passed and module in expected:
        wrong.append("some pass, and the list has the module")
    return wrong


def main():
    folder, module = pathlib.Path(sys.argv[1]), sys.argv[3]
    lines = [line for line in pathlib.Path(sys.argv[2]).read_text().splitlines() if line and line[0] != "#"]
    share = folder / "usr/share/doc/rdma-core"
    sys.path[:0] = [str(share / "tests"), str(share), str(folder / "usr/lib/python3/dist-packages")]
    sys.argv[1:] = []  # the tests read arguments, too
    ends = ends_of(share / "tests", module)
    wrong = wrong_with(module, ends, dict(line.split(": ", 1) for line in lines))
    print(f"{module}: {len(ends.passed)} pass, {len(ends.skips)} are skipped, {len(ends.failed)} fail")
    for line in wrong:
        print("WRONG:", line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
