"""What tools/softhca/check needs to run programs on the software HCA: one at a time or as server
and client, each with a time limit, never leaving a process behind; and to report what came out.
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TIMEOUT = int(os.environ.get("SOFTHCA_CHECK_TIMEOUT", "120"))  # seconds for one program


class Failed(Exception):
    """A case that failed; the text says what and why in one line."""


class Skipped(Exception):
    """A case that this machine cannot run; the text says why."""


def expect(condition, text):
    if not condition:
        raise Failed(text)


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\n\r\t")]
    return lines[-1][:300] if lines else "no output"


def needs(program):
    if shutil.which(program) is None:
        package = ("perftest" if program.startswith("ib_") else
                   "ucx-utils" if program.startswith("ucx") else "ibverbs-utils")
        raise Skipped(f"{program} is not installed (Debian: {package})")


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def listening(port):
    """Whether somebody listens; asking /proc disturbs no server that accepts one client."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = pathlib.Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                return True
    return False


class Program:
    """A program running on the facade, its output in a file."""

    def __init__(self, build, job, arguments, options=(), env=None):
        self.arguments = [str(a) for a in arguments]
        self.output_file = tempfile.TemporaryFile()
        command = [str(HERE / "run"), "--build", str(build), "--job", job, *options, "--",
                   *self.arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.output_file, stderr=subprocess.STDOUT,
            start_new_session=True, env={**os.environ, **(env or {})})

    def output(self):
        self.output_file.seek(0)
        return self.output_file.read().decode(errors="replace")

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def finish(self, limit=TIMEOUT):
        """The exit status; Failed when it does not end in time."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.stop()
            raise Failed(f"{' '.join(self.arguments)}: still running after {limit} s; "
                         f"last words: {last_line(self.output())}") from None


class Bench:
    """Runs programs from one build folder, each case in a job of its own."""

    def __init__(self, build):
        self.build = pathlib.Path(build).resolve()
        self.jobs = 0

    def job(self):
        self.jobs += 1
        return f"check-{os.getpid()}-{self.jobs}"

    def one(self, *arguments, options=(), env=None, status=0):
        """Output of a program that ends with `status`."""
        program = Program(self.build, self.job(), arguments, options, env)
        try:
            got = program.finish()
            expect(got == status, f"{' '.join(program.arguments)}: exit status {got} instead of "
                                  f"{status}; last words: {last_line(program.output())}")
            return program.output()
        finally:
            program.stop()

    def pair(self, *arguments, port_option="-p", host=("localhost",), options=(), env=None,
             host_first=False, status=0):
        """Outputs of a server and of a client that was given its address."""
        job, port = self.job(), free_port()
        arguments = [*arguments, port_option, port]
        server = Program(self.build, job, arguments, options, env)
        client = None
        try:
            end = time.monotonic() + 15
            while not listening(port):
                if server.process.poll() is not None:
                    if status != 0 and server.process.returncode == status:
                        return server.output(), ""
                    raise Failed(f"{' '.join(server.arguments)}: ended with status "
                                 f"{server.process.returncode} before it listened; last words: "
                                 f"{last_line(server.output())}")
                expect(time.monotonic() < end, f"{arguments[0]}: server does not listen on {port}")
                time.sleep(0.02)
            program, rest = arguments[0], arguments[1:]
            client = Program(self.build, job, [program, *host, *rest] if host_first else
                             [program, *rest, *host], options, env)
            for who, ran in (("client", client), ("server", server)):
                got = ran.finish()
                expect(got == status, f"{' '.join(ran.arguments)}: {who} exit status {got}; last "
                                      f"words: {last_line(ran.output())}")
            return server.output(), client.output()
        finally:
            server.stop()
            if client is not None:
                client.stop()


class Report:
    """One line a case on standard output, one JSON line in $TWINPATH_REPORT_LINES."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.lines = os.environ.get("TWINPATH_REPORT_LINES")

    def case(self, name, body):
        begin = time.monotonic()
        try:
            detail = body() or ""
            self.passed += 1
            result = "ok"
            print(f"ok: {name}" + (f" ({detail})" if detail else ""), flush=True)
        except Skipped as why:
            self.skipped += 1
            result, detail = "skipped", str(why)
            print(f"skipped: {name}: {why}", flush=True)
        except Exception as why:  # pylint: disable=broad-except  # a broken case is a failed case
            self.failed += 1
            result, detail = "failed", f"{why}" if isinstance(why, Failed) else repr(why)
            print(f"FAILED: {name}: {detail}", flush=True)
        if self.lines:
            with open(self.lines, "a", encoding="utf-8") as f:
                f.write(json.dumps({"program": name, "fabric": "soft", "result": result,
                                    "detail": detail,
                                    "seconds": round(time.monotonic() - begin, 1)}) + "\n")

    def end(self):
        print(f"cases: {self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 0 if self.failed == 0 and self.passed > 0 else 1
