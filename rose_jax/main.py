"""python -m rose_jax.main --config FILE[:ARG] [--workdir DIR] [--methods a,b] [--config.KEY=VALUE ...]"""

import errno
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from absl import app, flags
from ml_collections import config_flags

from rose_jax import commandline
from rose_jax.config import Config
from rose_jax.errors import INTERRUPTED_EXIT_CODE, UserError

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The setting: a Python file with a function get_config, and a preset after a colon."
)
_WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "Where the run lives; default runs/CONFIG_CHANGED-KEYS_seedN, which takes what it can from the runs beside it.",
)
_METHODS = flags.DEFINE_list("methods", None, "Rows to score, e.g. base,projector,gd,rose; default: the config's.")
_OVERWRITE = flags.DEFINE_bool(
    "overwrite",
    False,
    "Delete encoders in the workdir that were trained with other options; if seed, data, scenario or model differ, all.",
)
_WRITERS = flags.DEFINE_list("writers", [], "Log also to: tensorboard, wandb (extras of the same names).")
_MIRROR = flags.DEFINE_string(
    "mirror", "", "Keep a copy below this URL (gs://, s3://, a path); an empty workdir is filled from it."
)
_PROFILE = flags.DEFINE_integer("profile", 0, "Trace so many training steps to WORKDIR/profile.", lower_bound=0)
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "One of several processes that run this command.")
_COORDINATOR = flags.DEFINE_string("coordinator", "", "With --distributed, where jax cannot detect it: host:port.")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", 0, "With --coordinator: how many processes there are.")
_PROCESS_ID = flags.DEFINE_integer("process_id", -1, "With --coordinator: which of them this is, from 0.")
_FLAGS = (
    *(_CONFIG, _WORKDIR, _METHODS, _OVERWRITE, _WRITERS, _MIRROR, _PROFILE),
    *(_DISTRIBUTED, _COORDINATOR, _NUM_PROCESSES, _PROCESS_ID),
)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise UserError(f"Unexpected arguments: {' '.join(argv[1:])}")
    if _CONFIG.value is None:
        raise UserError("Give --config, e.g. --config configs/digits_cold5.py")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", force=True)
    for noisy in ("absl", "orbax", "jax", "fontTools"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    config: Config = _CONFIG.value
    # Resume is exact only where sums are; on other devices the flag means nothing.
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
    changes = commandline.settle(config, config_flags.get_config_filename(flags.FLAGS["config"]), _METHODS.value)
    from rose_jax import experiment  # after the flags: importing jax is slow, and errors above need none
    from rose_jax.runtime import hosts
    from rose_jax.runtime.files import refuse_address
    from rose_jax.runtime.places import default_workdir

    refuse_address("--workdir", _WORKDIR.value or "")
    experiment.cache_compilations()
    if _DISTRIBUTED.value or _COORDINATOR.value or _NUM_PROCESSES.value > 0 or _PROCESS_ID.value >= 0:
        hosts.start(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    workdir = Path(_WORKDIR.value) if _WORKDIR.value else default_workdir(config, changes)
    writers = tuple(_WRITERS.value)
    try:
        experiment.run(
            config,
            workdir,
            overwrite=_OVERWRITE.value,
            writers=writers,
            profile_steps=_PROFILE.value,
            share=not _WORKDIR.value,
            mirror=_MIRROR.value,
        )
    except hosts.Preempted as stop:
        print(f"Saved and {stop}. The same command continues there.", file=sys.stderr)
        sys.exit(stop.exit_code)
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
    except KeyboardInterrupt:  # before a run could note it, or the second one
        print("Interrupted. What was saved before is whole: the same command continues there.", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT_CODE)


def _parse(argv: list[str]) -> list[str]:
    """absl's parser, with help that ends the process well and messages that say what is allowed."""
    file, given = commandline.config_argument(argv), commandline.given_keys(argv)
    if any(word in commandline.HELP for word in argv[1:]):
        _end_with(commandline.help_on_flags({flag.name: str(flags.FLAGS[flag.name].help) for flag in _FLAGS}))
    config = None if file is None else commandline.load_config(file)  # its mistakes, before absl meets them
    for word in argv[1:]:
        name, _, wanted = word.lstrip("-").partition("=")
        if name == "config.help":
            _end_with(commandline.help_on_keys(config or Config(), wanted))
    commandline.check_keys(given)
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        raise commandline.explained(str(error)) from None


def _end_with(text: str) -> NoReturn:
    print(text, end="")
    sys.exit(0)


if __name__ == "__main__":
    run()
