"""Runs a tool as a user would.  Shared by the tests of this folder."""
import json
import os
import subprocess

NET_PERF = os.environ["NET_PERF"]
INFO = os.environ["TWINPATH_INFO"]
PLUGIN = os.environ["PLUGIN"]
SOCKET_PLUGIN = os.environ["SOCKET_PLUGIN"]
SOURCE_ROOT = os.environ["SOURCE_ROOT"]

_CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("TWINPATH_", "NCCL_"))}

# A test that runs under mpirun or Slurm must not make a tool believe that it belongs to that job.
NO_JOB = {name: "" for name in ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                "SLURM_PROCID")}


def clean_environment():
    """The environment without settings of the plugin or of NCCL."""
    return dict(_CLEAN)


def run(program, *args, env=None, limit=60):
    """The finished process; fails the test when the tool itself does not end in time."""
    return subprocess.run([program, *map(str, args)], env={**_CLEAN, **(env or {})},
                          capture_output=True, text=True, timeout=limit)


def net_perf(*args, env=None, plugin=PLUGIN, limit=60):
    env = {**NO_JOB, "TWINPATH_FABRIC": "soft", **(env or {})}
    timeout = () if "--timeout" in args else ("--timeout", 30)
    return run(NET_PERF, "--plugin", plugin, *timeout, *args, env=env, limit=limit)


def net_perf_json(*args, **more):
    done = net_perf(*args, "--json", **more)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)
