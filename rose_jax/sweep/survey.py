"""What must be known before the first run starts: that all of them can run, and on how many devices.

Asked in a process of its own that ends at once, for whoever asks jax for its devices holds them:

    python -m rose_jax.sweep.survey < [[ARGUMENT, ...], ...]
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rose_jax.errors import UserError


@dataclass(frozen=True)
class Survey:
    platform: str  # cpu, gpu, tpu
    devices: int  # chips, of which some have two of jax's devices
    trainings: list[list[str]]  # of each run: names of the encoders that it needs, alike for alike ones
    programs: list[str]  # of each run: alike for those that compile the same


def ask(runs: Sequence[Sequence[str]], environment: dict[str, str] | None = None) -> Survey:
    """runs: the arguments of each. A UserError is the message of the first that cannot run."""
    command = [sys.executable, "-m", "rose_jax.sweep.survey"]
    asked = json.dumps([list(run) for run in runs])
    done = subprocess.run(
        command, input=asked, capture_output=True, text=True, env=environment or dict(os.environ)
    )
    refusal = re.search(r"^error: (.*)\Z", done.stderr, re.MULTILINE | re.DOTALL)
    if done.returncode == 2 and refusal:
        raise UserError(refusal[1].rstrip())
    if done.returncode:
        raise UserError(f"The devices could not be counted:\n{done.stderr[-2000:]}")
    return Survey(**json.loads(done.stdout.splitlines()[-1]))


def answer(runs: Sequence[Sequence[str]]) -> Survey:
    """The same in this process."""
    import jax

    from rose_jax import experiment
    from rose_jax.config import Config
    from rose_jax.methods import resolve
    from rose_jax.run.identity import digest_of, trajectory_options
    from rose_jax.runtime.agreement import SHARED
    from rose_jax.runtime.sharding import Layout
    from rose_jax.sweep.plan import read

    def common(config: Config, *sections: str) -> str:
        saved = json.loads(config.to_json())
        return json.dumps([saved[name] for name in sections], sort_keys=True)

    devices = jax.local_devices()
    # Of a TPU chip with two cores both have the same coordinates.
    chips = {tuple(device.coords) if hasattr(device, "coords") else device.id for device in devices}
    layout = Layout(devices[:1])
    parts: dict[str, Any] = {}  # data and encoder of configs that have them in common
    trainings, programs = [], []
    for arguments in runs:
        config, _ = read(arguments)
        rows = resolve(config.methods)
        shared = common(config, "data", "scenario", "model")
        if shared not in parts:
            parts[shared] = experiment.make_features(config, layout).parts
        experiment.check_needs(rows, parts[shared]._replace(config=config))
        objectives = dict.fromkeys(row.objective for row in rows.values())
        options = {name: trajectory_options(config, name) for name in objectives}
        trainings.append(
            [digest_of([name, common(config, *SHARED), json.dumps(options[name])]) for name in objectives]
        )
        programs.append(digest_of([shared, *objectives]))
    return Survey(devices[0].platform, len(chips), trainings, programs)


def main() -> int:
    try:
        found = answer(json.load(sys.stdin))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(vars(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
