"""Compiles the paper's fourteen settings for TPUs, and puts what the compiler says into docs/scaling.md.

    python scripts/compile_settings.py [--topologies v5e:1,v5e:2x4] [--settings cifar100_cold10,...]
    python scripts/compile_settings.py --update      # only the page, from docs/compiled.json

Needs the extra [tpu], no TPU, and hours of a CPU: a training step of ResNet-18 takes minutes to compile. Findings go to
docs/compiled.json after every setting, and a program that was compiled before is not compiled again, so that the
same command goes on where it was stopped. Each setting is compiled as :tpu has it; base's trajectory with its rows
everywhere, efc and fcs in one setting of each data set.
"""

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from rose_jax.commandline import load_config  # noqa: E402
from rose_jax.runtime.files import write_json, write_text  # noqa: E402

# The shortest first.
SETTINGS = (
    *("cifar100_cold10", "cifar100_cold5", "cifar100_cold20", "tiny_cold10", "tiny_cold5", "tiny_cold20"),
    *("imagenet100_cold10", "cifar100_warm10", "cifar100_warm5", "cifar100_warm20"),
    *("tiny_warm10", "tiny_warm5", "tiny_warm20", "imagenet100_warm10"),
)
WITH_OTHERS = ("cifar100_cold10", "tiny_cold10", "imagenet100_cold10")  # where efc and fcs are compiled as well
TOPOLOGIES = ("v5e:1", "v5e:2x4")
ROWS, OTHERS = ("base", "projector", "gd", "rose"), ("efc", "fcs")
FOUND, PAGE = ROOT / "docs" / "compiled.json", ROOT / "docs" / "scaling.md"
KEPT = ("name", "unit", "runs", "fits", "message", "seconds", "code", "arguments", "temporary", "outputs")
KEPT += ("flops", "cycles", "collectives", "loops", "share_of_hbm", "share_of_peak", "without_estimate")
DECODE_MS = 6.0  # of a vCPU for one ImageNet JPEG: twice a core's (bench.py decode), as two share a core
Found = dict[str, dict[str, Any]]  # "TOPOLOGY SETTING" -> what table.record gives


def compile_all(topologies: list[str], settings: list[str], cache: Path) -> None:
    from rose_jax.compile import table
    from rose_jax.compile.compiling import find
    from rose_jax.compile.describe import describe
    from rose_jax.compile.programs import programs_of

    for topology_name in topologies:
        topology = describe(topology_name)
        import jax

        from rose_jax.runtime.sharding import DescribedLayout

        jax.config.update("jax_traceback_in_locations_limit", -1)
        layout = DescribedLayout(topology.devices)
        # efc's and fcs's steps come last: what the page is mostly about is there first.
        for methods in (ROWS, OTHERS):
            for name in settings:
                if methods is OTHERS and name not in WITH_OTHERS:
                    continue
                config = load_config(f"{ROOT}/configs/{name}.py:tpu")
                config.methods = methods
                rows = []
                for program in programs_of(config, layout, "tpu"):
                    print(f"{topology_name} {name}: {program.name} ...", flush=True)
                    rows.append((program, find(program, topology, cache)))
                record = table.record(rows, topology)
                record["programs"] = [{key: one[key] for key in KEPT} for one in record["programs"]]
                key, found = f"{topology_name} {name}", read()
                known = (
                    {} if methods is ROWS or key not in found else {p["name"]: p for p in found[key]["programs"]}
                )
                merged = known | {one["name"]: one for one in record["programs"]}
                write_json(FOUND, found | {key: record | {"programs": list(merged.values())}})


def read() -> Found:
    return json.loads(FOUND.read_text()) if FOUND.is_file() else {}


def tables(found: Found) -> dict[str, str]:
    return {
        "settings": markdown(setting_rows(found)),
        "eight": markdown(eight_rows(found)),
        "programs": markdown(program_rows(found, "cifar100_cold10")),
        "others": markdown(other_rows(found)),
        "decode": markdown(decode_rows(found)),
    }


def setting_rows(found: Found) -> list[list[str]]:
    rows = [
        ["setting", "steps, first + later", "M cycles a step", "ms", "of peak", "largest program, GiB", "training"]
    ]
    for name, (record, first, later) in _steps(found, "v5e:1").items():
        clock = record["chip"]["clock"]
        largest = max(
            sum(p[key] for key in ("code", "arguments", "temporary", "outputs")) for p in record["programs"]
        )
        seconds = sum(p["runs"] * p["cycles"] for p in (first, later)) / clock
        rows.append(
            [
                name,
                f"{first['runs']:,} + {later['runs']:,}",
                _pair(first, later, "cycles", 1e-6, ".2f"),
                _pair(first, later, "cycles", 1e3 / clock, ".1f"),
                _pair(first, later, "share_of_peak", 1, ".0%"),
                f"{largest / 2**30:.1f}",
                duration(seconds),
            ]
        )
    return rows + too_large(found, "v5e:1", len(rows[0]))


def eight_rows(found: Found) -> list[list[str]]:
    rows = [["setting", "M cycles a step", "ms", "one chip's / 8", "collectives of a later step", "training"]]
    alone = _steps(found, "v5e:1")
    for name, (record, first, later) in _steps(found, "v5e:2x4").items():
        clock = record["chip"]["clock"]
        seconds = sum(p["runs"] * p["cycles"] for p in (first, later)) / clock
        share = f"{100 * alone[name][2]['cycles'] / (8 * later['cycles']):.0f} %" if name in alone else "?"
        rows.append(
            [
                name,
                _pair(first, later, "cycles", 1e-6, ".2f"),
                _pair(first, later, "cycles", 1e3 / clock, ".1f"),
                share,
                collectives(later),
                duration(seconds),
            ]
        )
    return rows + too_large(found, "v5e:2x4", len(rows[0]))


def too_large(found: Found, topology: str, columns: int) -> list[list[str]]:
    """A row for every setting of which a program does not fit."""
    programs = {name: found.get(f"{topology} {name}", {"programs": []})["programs"] for name in SETTINGS}
    messages = {
        name: next((f"{p['name']} does not fit: {p['message']}" for p in some if not p["fits"]), "")
        for name, some in programs.items()
    }
    return [[name, message, *[""] * (columns - 2)] for name, message in messages.items() if message]


def program_rows(found: Found, name: str) -> list[list[str]]:
    rows = [
        [
            "program",
            "compile s",
            "code MB",
            "temporary MB",
            "GFLOP",
            "k cycles",
            "µs",
            "of peak",
            "calls not in it",
        ]
    ]
    record = found.get(f"v5e:1 {name}", {"programs": []})
    for p in record["programs"]:
        if not p["fits"]:
            rows.append([p["name"], f"{p['seconds']:.0f}", p["message"], *["-"] * 6])
            continue
        rows.append(
            [
                f"{p['name']}, a {p['unit']}".replace("a image", "an image"),
                f"{p['seconds']:.0f}",
                *(f"{p[key] / 1e6:,.1f}" for key in ("code", "temporary")),
                f"{p['flops'] / 1e9:,.3f}",
                f"{p['cycles'] / 1e3:,.1f}",
                f"{1e6 * p['cycles'] / record['chip']['clock']:,.1f}",
                f"{100 * p['share_of_peak']:.0f} %",
                without_estimate(p["without_estimate"]),
            ]
        )
    return rows


def without_estimate(counts: dict[str, int]) -> str:
    """By kind; the places in the source are in docs/compiled.json."""
    kinds: Counter[str] = Counter()
    for name, count in counts.items():
        kinds[name.rpartition(": ")[2]] += count
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"


def other_rows(found: Found) -> list[list[str]]:
    rows = [
        [
            "setting",
            "objective",
            "topology",
            "M cycles a step",
            "of peak",
            "temporary GiB",
            "collectives of a later step",
        ]
    ]
    for topology in TOPOLOGIES:
        for objective in OTHERS:
            for name, (_, first, later) in _steps(found, topology, objective).items():
                rows.append(
                    [
                        *(name, objective, topology),
                        _pair(first, later, "cycles", 1e-6, ".2f"),
                        _pair(first, later, "share_of_peak", 1, ".0%"),
                        _pair(first, later, "temporary", 2**-30, ".1f"),
                        collectives(later),
                    ]
                )
    return rows


def decode_rows(found: Found) -> list[list[str]]:
    rows = [["setting", "topology", "images/s that keep a later step busy", "vCPUs that decode as many"]]
    for topology in TOPOLOGIES:
        for name, (record, _, later) in _steps(found, topology).items():
            if name.startswith("imagenet100"):
                batch = load_config(f"{ROOT}/configs/{name}.py").train.batch_size
                rate = batch * record["chip"]["clock"] / later["cycles"]
                rows.append([name, topology, f"{rate:,.0f}", f"{rate * DECODE_MS / 1e3:.0f}"])
    return rows


def _steps(found: Found, topology: str, objective: str = "base") -> dict[str, tuple[dict, dict, dict]]:
    """Of every setting that was compiled: its record, and its two training steps."""
    steps = {}
    for name in SETTINGS:
        record = found.get(f"{topology} {name}", {"programs": []})
        both = [
            p
            for p in record["programs"]
            if p["name"].startswith(f"{objective}: ") and p["unit"] == "step" and p["fits"]
        ]
        if len(both) == 2:
            steps[name] = (record, *both)
    return steps


def _pair(first: dict, later: dict, key: str, scale: float, form: str) -> str:
    return f"{first[key] * scale:{form}} / {later[key] * scale:{form}}"


def collectives(program: dict) -> str:
    return ", ".join(f"{count:.0f} {kind}" for kind, count in sorted(program["collectives"].items())) or "none"


def duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def markdown(rows: list[list[str]]) -> str:
    header, *body = rows
    body = body or [["not compiled yet", *[""] * (len(header) - 1)]]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *body))


def update(page: str, texts: dict[str, str]) -> str:
    """The page with each table put between its <!-- NAME --> and <!-- end --> lines."""
    for name, text in texts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        page, found = re.subn(pattern, lambda m, text=text: f"{m[1]}{text}\n{m[2]}", page, flags=re.DOTALL)
        if found != 1:
            raise SystemExit(f"error: the page has {found} places for the table {name!r}, not one.")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", default=",".join(TOPOLOGIES))
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/rose_jax/compiled").expanduser())
    parser.add_argument("--update", action="store_true", help="compile nothing")
    options = parser.parse_args()
    if not options.update:
        compile_all(options.topologies.split(","), options.settings.split(","), options.cache)
    write_text(PAGE, update(PAGE.read_text(), tables(read())))


if __name__ == "__main__":
    main()
