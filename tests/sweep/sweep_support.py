"""What the tests of sweeps share."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TINY = "from tiny_run import get_config\n"
# Passes every check, and is killed as soon as it is a run.
KILLED = """\
import os, sys
from tiny_run import get_config as tiny

def get_config(arg=""):
    config = tiny(arg)
    config.name = "killed"
    if sys.argv[0].endswith("main.py"):
        print("about to be killed", flush=True)
        os.kill(os.getpid(), 9)
    return config
"""


def environment(cache, **more):
    """Of a command in another folder: one device, the compiler of the tests, a compilation cache."""
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1"),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": os.pathsep.join(paths),
        **more,
    }


def command(module, *arguments):
    return [sys.executable, "-m", module, *map(str, arguments)]


def call(folder, env, module, *arguments):
    """(exit code, standard output, standard error) of a command in `folder`."""
    done = subprocess.run(command(module, *arguments), cwd=folder, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr
