"""python -m rose_jax.main --config FILE[:ARG] [--workdir DIR] [--methods a,b] [--config.KEY=VALUE ...]"""

import errno
import logging
import os
import sys
from pathlib import Path

from absl import app, flags
from ml_collections import config_flags

from rose_jax.config import FREE_KEYS, Config, keys, validate
from rose_jax.errors import UserError, unknown

_CONFIG = config_flags.DEFINE_config_file("config", None, "Configuration file, with an argument after a colon.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where the run lives; default runs/CONFIG_seedN.")
_METHODS = flags.DEFINE_list("methods", None, "Rows to score, e.g. base,projector,gd,rose; default: the config's.")
_OVERWRITE = flags.DEFINE_bool(
    "overwrite",
    False,
    "Delete encoders in the workdir that were trained with other options; if seed, data, scenario or model differ, all.",
)
_WRITERS = flags.DEFINE_list("writers", [], "Log also to: tensorboard, wandb (extras of the same names).")
_PROFILE = flags.DEFINE_integer("profile", 0, "Trace so many training steps to WORKDIR/profile.", lower_bound=0)
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "One of several processes that run this command.")
_COORDINATOR = flags.DEFINE_string("coordinator", "", "With --distributed, where jax cannot detect it: host:port.")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", 0, "With --coordinator: how many processes there are.")
_PROCESS_ID = flags.DEFINE_integer("process_id", -1, "With --coordinator: which of them this is, from 0.")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise UserError(f"Unexpected arguments: {' '.join(argv[1:])}")
    if _CONFIG.value is None:
        raise UserError("Give --config, e.g. --config configs/digits_cold5.py")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", force=True)
    for noisy in ("absl", "orbax", "jax"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    config: Config = _CONFIG.value
    if _METHODS.value is not None:
        config.methods = tuple(_METHODS.value)
    # Resume is exact only where sums are; on other devices the flag means nothing.
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
    # What makes a run something else than what its config file names.
    changed = [key for key in _given_keys(sys.argv) if key != "seed" and key not in FREE_KEYS]
    if changed and config.preset == "full":
        config.preset = "custom"
    if changed:
        config.note = "; ".join(filter(None, [config.note, "changed: " + ", ".join(changed)]))
    validate(config)
    from rose_jax import experiment  # after the flags: importing jax is slow, and errors above need none
    from rose_jax.runtime import hosts
    from rose_jax.runtime.workdir import default_workdir

    experiment.cache_compilations()
    if _DISTRIBUTED.value or _COORDINATOR.value or _NUM_PROCESSES.value > 0 or _PROCESS_ID.value >= 0:
        hosts.start(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    workdir = Path(_WORKDIR.value) if _WORKDIR.value else default_workdir(config)
    writers = tuple(_WRITERS.value)
    try:
        experiment.run(config, workdir, overwrite=_OVERWRITE.value, writers=writers, profile_steps=_PROFILE.value)
    except hosts.Preempted as stop:
        print(f"Saved and {stop}. The same command continues there.", file=sys.stderr)
        sys.exit(hosts.PREEMPTED_EXIT_CODE)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"The disk of {workdir} is full, or its quota used up. Earlier checkpoints are intact; make room and rerun."
        ) from None


def run() -> None:
    """Entry point: a UserError is one message and exit code 2, not a traceback."""
    try:
        app.run(main, flags_parser=_parse)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _parse(argv: list[str]) -> list[str]:
    """absl's parser, with the nearest right key where --config.KEY does not exist."""
    _check_config_file(argv)
    try:
        return flags.FLAGS(argv)
    except (AttributeError, KeyError, flags.UnrecognizedFlagError) as error:
        known = keys(Config())
        for key in _given_keys(argv):
            if key not in known:
                raise unknown("config key", key, known) from None
        raise UserError(str(error)) from None
    except flags.Error as error:
        raise UserError(str(error)) from None


def _check_config_file(argv: list[str]) -> None:
    for position, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name in ("--config", "-config"):
            path = Path((value if equals else "".join(argv[position + 1 : position + 2])).split(":")[0])
            if not path.is_file():
                raise UserError(f"There is no config file {path}. The paper's are in configs/ of the repository.")


def _given_keys(argv: list[str]) -> list[str]:
    """Every KEY of a --config.KEY=VALUE on the command line."""
    names = [argument.lstrip("-").split("=")[0] for argument in argv]
    return [name.removeprefix("config.") for name in names if name.startswith("config.")]


if __name__ == "__main__":
    run()
