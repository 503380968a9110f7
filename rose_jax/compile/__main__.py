"""`python -m rose_jax.compile --config FILE[:PRESET] [--topology v5e:2x4]`: what a run needs on TPUs, without one."""

import logging
import sys
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from rose_jax import commandline
from rose_jax.config import Config, validate
from rose_jax.errors import INTERRUPTED_EXIT_CODE, UserError

USAGE = """\
usage: python -m rose_jax.compile --config FILE[:PRESET] [--topology KIND:SHAPE] [--methods ROW,ROW] [--config.KEY=VALUE ...]

Compiles every program of that run for TPUs that need not be there; trains nothing, and needs none of the paper's data.
Prints what each needs and costs by the compiler's estimate. Exit code 3 if one does not fit.

example: python -m rose_jax.compile --config configs/cifar100_cold10.py:tpu --topology v5e:1
"""
DOES_NOT_FIT = 3
FLAGS = flags.FlagValues()  # of its own: rose_jax.main may be loaded as well

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The setting: a Python file with a function get_config, and a preset.", flag_values=FLAGS
)
_TOPOLOGY = flags.DEFINE_string(
    "topology", "v5e:1", "Devices, as v5e:1, v5e:2x4, v4:2x2x1 or v5p:2x2x1.", flag_values=FLAGS
)
_METHODS = flags.DEFINE_list(
    "methods", None, "Rows whose programs are compiled; default: the config's.", flag_values=FLAGS
)
_JSON = flags.DEFINE_string("json", None, "Write the table there as well, as JSON.", flag_values=FLAGS)
_CACHE = flags.DEFINE_string(
    "cache",
    "~/.cache/rose_jax/compiled",
    "Where findings are kept: a program that was compiled before is not compiled again.",
    flag_values=FLAGS,
)
_FLAGS = (_CONFIG, _TOPOLOGY, _METHODS, _JSON, _CACHE)


def main(argv: list[str]) -> int:
    try:
        commandline.parse(argv, FLAGS, [flag.name for flag in _FLAGS], USAGE)
        config: Config = _CONFIG.value
        if _METHODS.value is not None:
            config.methods = tuple(_METHODS.value)
        validate(config)
        return compile_run(config, _TOPOLOGY.value, Path(_CACHE.value).expanduser(), _JSON.value)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted. The same command goes on after the programs that are compiled.", file=sys.stderr)
        return INTERRUPTED_EXIT_CODE


def compile_run(config: Config, topology_name: str, cache: Path, json_path: str | None) -> int:
    from rose_jax.compile.describe import describe  # importing jax is slow, and errors above need none

    topology = describe(topology_name)
    import jax

    from rose_jax.compile import table
    from rose_jax.compile.compiling import find
    from rose_jax.compile.programs import programs_of
    from rose_jax.runtime.files import write_json
    from rose_jax.runtime.sharding import DescribedLayout

    jax.config.update("jax_traceback_in_locations_limit", -1)  # flax's own frames would push ours out
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    logging.getLogger("jax").setLevel(logging.ERROR)
    rows = []
    for program in programs_of(config, DescribedLayout(topology.devices), "tpu"):
        logging.info("compiling %s for %s ...", program.name, topology.name)
        rows.append((program, find(program, topology, cache)))
    print(table.text(rows, topology))
    if json_path:
        write_json(Path(json_path), table.record(rows, topology) | {"config": config.name})
    return 0 if all(found.fits for _, found in rows) else DOES_NOT_FIT


if __name__ == "__main__":
    sys.exit(main(sys.argv))
