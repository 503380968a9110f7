"""What things cost on this machine:  python scripts/bench.py NAME [options]  (NAME --help: what is measured, and how)

    blas         what one BLAS thread is worth to the evolution
    conv         what summing a convolution's weight gradient in parts is worth
    decode       CPU time of an ImageNet JPEG
    evolution    an image, a batch and a whole test stage of the evolution
    methods      training, test and memory of each row
    train        what the host and the checkpoints add to an epoch

What is compared takes turns within one run, so that whatever else the machine does falls on all alike; ratios are
medians over the rounds, with quartiles. Exit code 1 if a claim is missed.
"""

import argparse
import importlib
import sys
from functools import partial
from pathlib import Path

NAMES = ("blas", "conv", "decode", "evolution", "methods", "train")


def main(arguments: list[str]) -> int:
    make_parser = partial(argparse.ArgumentParser, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser = make_parser(prog="bench.py", description=__doc__)
    parser.add_argument("NAME", choices=NAMES)
    name = parser.parse_args(arguments[:1]).NAME
    # Only the one that is asked for: it may have to set up the process before jax is imported.
    bench = importlib.import_module(f"benches.{name}")
    parser = make_parser(prog=f"bench.py {name}", description=bench.__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="how often each is timed, compilation aside (10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables here too")
    bench.add_options(parser)
    options = parser.parse_args(arguments[1:])
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    report = importlib.import_module("benches.shared").Report(name)
    bench.run(options, report)
    return report.close(options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
