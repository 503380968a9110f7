"""Does the evolution engine stay exact? 100,000 streamed images against float64 NumPy over the same queue.

    python scripts/check_evolution.py [--images 100000] [--points 200] [--platform tpu] [--out check_evolution.json]

At every point (mid-block, block end, and around the image at which the last pseudo-feature leaves) the
engine's prototypes are compared with the float64 solution of the same ridge problem, and its predictions for
the images that led there with float64 predictions. Exits with 1 if a bound is missed. --platform: the program and the
block of that platform (elimination by halves on accelerators), run on the devices that are here.
"""

import argparse
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from evolution_stream import Stage, Stream, stage_of

from rose_jax.evolution import predict, ridge_for, rose
from rose_jax.evolution.blocked import block_size
from rose_jax.runtime.target import target, tracing_for

CASES = (  # name, alpha, dead channels, capacity, bound on the prototypes' error, bound on equal predictions
    ("alpha 0.2", 0.2, 0.0, 3000, 2e-4, 0.999),
    ("alpha 0.02", 0.02, 0.0, 3000, 2e-4, 0.999),
    ("10 % dead channels", 0.2, 0.1, 3000, 2e-4, 0.999),
    ("10 % dead, alpha 0.02", 0.02, 0.1, 3000, 2e-4, 0.999),
    ("S=500 < d", 0.2, 0.0, 500, 1e-3, 0.99),
    ("S=500 < d, 10 % dead", 0.2, 0.1, 500, 1e-3, 0.99),
)
CLASSES, DIM, CALL, WINDOW = 100, 512, 512, 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--case", action="append", help="only the cases whose name contains this")
    parser.add_argument("--platform", choices=("cpu", "gpu", "tpu"), default=target().platform)
    parser.add_argument("--out", default="check_evolution.json")
    args = parser.parse_args()
    with tracing_for(args.platform):
        return check_all(args)


def check_all(args: argparse.Namespace) -> int:
    results = []
    print(f"{'case':24} {'points':>6} {'max error':>10} {'by fifths of the stream':>44} {'equal':>8}  counts")
    for name, alpha, dead, capacity, error_bound, equal_bound in CASES:
        if args.case and not any(part in name for part in args.case):
            continue
        found = check(alpha, dead, capacity, args.images, args.points)
        found |= {"case": name, "error_bound": error_bound, "equal_bound": equal_bound}
        found["passed"] = found["max_error"] <= error_bound and found["equal"] >= equal_bound
        results.append(found)
        fifths = " ".join(f"{x:8.1e}" for x in found["error_by_fifth"])
        print(
            f"{name:24} {found['points']:6} {found['max_error']:10.1e} {fifths} {found['equal']:8.4%}"
            f"  {found['counts']}{'' if found['passed'] else '  MISSED'}",
            flush=True,
        )
    Path(args.out).write_text(
        json.dumps({"images": args.images, "platform": args.platform, "cases": results}, indent=1) + "\n"
    )
    return 0 if all(found["passed"] for found in results) else 1


def check(alpha: float, dead: float, capacity: int, images: int, points: int) -> dict:
    block = block_size()
    stream = Stream(CLASSES, DIM, dead)
    stage = stage_of(stream)
    evolver = rose(capacity, alpha)
    everything = jnp.ones(CLASSES, bool)
    state = jax.jit(evolver.init)(
        jnp.asarray(stage.prototypes), everything, everything, jnp.asarray(stage.projector), jax.random.key(0)
    )
    step = jax.jit(evolver.step)
    reference = Reference(stage, np.asarray(state.old), ridge_for(capacity, DIM)[0])
    borders = np.unique(np.linspace(0, images // block - 1, points).astype(int)) * block
    borders = sorted({*borders.tolist(), (capacity - 1) // block * block, capacity // block * block})
    offsets = np.random.default_rng(0)

    errors, places, equal, compared = [], [], 0, 0
    for start in range(0, images, CALL):
        z_old, z_new, _ = stream.draw(CALL, part=start // CALL)
        for border in (b for b in borders if start <= b < start + CALL):
            first = border - start
            # ahead of a block, or all of it, or up to the last pseudo-feature; the rest is padding
            taken = block if border % (2 * block) else int(offsets.integers(1, block))
            if border < capacity <= border + block:
                taken = capacity - border
            at_border, _ = step(state, z_old, z_new, np.arange(CALL) < first)
            part = slice(first, first + block)
            ahead, scores = step(at_border, z_old[part], z_new[part], np.arange(block) < taken)
            skipped = max(0, taken - WINDOW)
            window = reference.after(z_old, z_new, first + skipped)
            expected, labels = window.evolve(z_old[part][skipped:taken], z_new[part][skipped:taken])
            found = np.asarray(evolver.prototypes(ahead), np.float64)
            error = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
            errors.append(float(error.max()))
            places.append(border + taken)
            equal += int((np.asarray(predict(scores))[skipped:taken] == labels).sum())
            compared += taken - skipped
        state, _ = step(state, z_old, z_new, np.ones(CALL, bool))
        reference = reference.after(z_old, z_new, CALL)
    fifth = np.minimum(np.asarray(places) * 5 // images, 4)
    return {
        "points": len(errors),
        "predictions": compared,
        "max_error": max(errors),
        "error_by_fifth": [float(np.max(np.asarray(errors)[fifth == k], initial=0)) for k in range(5)],
        "equal": equal / compared,
        "counts": {name: int(value) for name, value in state.counts._asdict().items()},
    }


class Reference:
    """The queue as plain float64 arrays, oldest pair first, and the ridge problem over it."""

    def __init__(self, stage: Stage, pseudo: np.ndarray, ridge: float):
        self.prototypes, self.projector = (x.astype(np.float64) for x in stage)
        self.old = pseudo.astype(np.float64)
        self.new = self.old @ self.projector
        self.lam = ridge * np.mean(np.sum(self.old**2, axis=0))

    def after(self, z_old, z_new, count: int) -> "Reference":
        """The same queue `count` images later."""
        later = object.__new__(Reference)
        later.prototypes, later.projector, later.lam = self.prototypes, self.projector, self.lam
        capacity = len(self.old)
        later.old = np.concatenate([self.old, z_old[:count]])[-capacity:]
        later.new = np.concatenate([self.new, z_new[:count]])[-capacity:]
        return later

    def evolve(self, z_old, z_new) -> tuple[np.ndarray, np.ndarray]:
        """Image by image: the prototypes after the last one, and a label for each."""
        gram, cross = self.old.T @ self.old, self.old.T @ self.new
        labels = []
        for i, (enter_old, enter_new) in enumerate(zip(z_old.astype(np.float64), z_new, strict=True)):
            leave_old, leave_new = self.old[i], self.new[i]
            gram += np.outer(enter_old, enter_old) - np.outer(leave_old, leave_old)
            cross += np.outer(enter_old, enter_new) - np.outer(leave_old, leave_new)
            system = gram + self.lam * np.eye(len(gram))
            moved = np.linalg.solve(system, self.prototypes.T).T @ (cross + self.lam * self.projector)
            labels.append(np.argmax(moved @ enter_new / np.linalg.norm(moved, axis=1)))
        return moved, np.asarray(labels)


if __name__ == "__main__":
    sys.exit(main())
