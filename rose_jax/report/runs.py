"""Reads a finished run's folder into plain values. Anything optional in results.json may be missing, null or NaN.
A number that is not finite becomes None here, so that tables and figures need to check for None only."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rose_jax import events
from rose_jax.errors import UserError

SCHEMA = 1

Number = float | None
Grid = tuple[tuple[Number, ...], ...]


Point = tuple[float, float]


@dataclass(frozen=True)
class Score:
    """One method's row of results.json. Accuracies are per cent, averaged over classes."""

    name: str
    last: Number = None
    average: Number = None
    old: Number = None
    new: Number = None
    forgetting: Number = None
    drift_cosine: Number = None
    ms_per_image: Number = None
    forwards: Number = None  # passes per test image
    backwards: Number = None
    per_stage: tuple[Number, ...] = ()
    matrix: Grid = ()  # [stage][task], None above the diagonal
    confusion: Grid = ()  # [true task][predicted task], counts at the last stage
    drift_cosines: tuple[float, ...] = ()  # one per old class
    per_class: tuple[Number, ...] = ()  # at the last stage, in the order in which the classes came
    events: tuple[str, ...] = ()  # what went wrong in its test streams, if anything
    path: tuple[tuple[Point, ...], ...] = ()  # [moment][class]: the last stage's old prototypes in its plane
    encoders: str = ""  # digest of those it was scored with
    origin: str = "paper"  # "ours" or "published" (by others): a row that the paper does not have


@dataclass(frozen=True)
class Plane:
    """Test features of the last stage along their two principal directions."""

    encoders: str
    classes: tuple[int, ...]  # old ones, whose prototypes are shown, as they came
    true_means: tuple[Point, ...]  # of these classes
    points: tuple[Point, ...]
    labels: tuple[int, ...]  # of the points


@dataclass(frozen=True)
class Run:
    workdir: Path
    setting: Mapping[str, Any]
    scores: Mapping[str, Score]
    train: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by objective; "": all of them
    environment: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    planes: Mapping[str, Plane] = field(default_factory=dict)  # by objective

    @property
    def dataset(self) -> str:
        return str(self.setting.get("dataset") or "unknown dataset")

    @property
    def start(self) -> str:
        return str(self.setting.get("start") or "")

    @property
    def tasks(self) -> int:
        tasks = self.setting.get("tasks")
        return tasks if isinstance(tasks, int) else len(self.task_sizes)

    @property
    def task_sizes(self) -> tuple[int, ...]:
        groups = self.setting.get("task_classes")
        return tuple(len(g) for g in groups if isinstance(g, list)) if isinstance(groups, list) else ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """In the order in which the classes came; runs of earlier versions know their numbers only."""
        order, names = self.setting.get("class_order"), self.setting.get("class_names")
        if not isinstance(order, list):
            return ()
        known = names if isinstance(names, list) and len(names) == len(order) else range(len(order))
        places = [c if isinstance(c, int) and 0 <= c < len(order) else 0 for c in order]
        return tuple(one_line(known[c]) for c in places)

    @property
    def reduced(self) -> str:
        """ "thin", "smoke", ... for a run that is not the paper's full setting, else ""."""
        label = str(self.setting.get("label") or "")
        return "" if label in ("full", "own") else label

    @property
    def seed(self) -> Any:
        return self.setting.get("seed", self.config.get("seed"))

    @property
    def paper_setting(self) -> tuple[str, str, int]:
        """(dataset, start, tasks) by which to find the paper's numbers for this run.

        With other data or another split of the classes than the paper's, tasks is -1, for which the paper has none.
        """
        comparable = self.setting.get("split", "equal") == "equal"
        comparable &= str(self.setting.get("data", "complete")).startswith("complete")
        return self.dataset, self.start, self.tasks if comparable else -1


def load(workdir: str | os.PathLike[str]) -> Run:
    """The run in `workdir`; a UserError names results.json when it is missing or not what we wrote."""
    workdir = Path(workdir)
    results = _read_results(workdir / "results.json")
    try:
        config = json.loads((workdir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a report without the config is better than none
        config = {}
    return Run(
        workdir=workdir,
        setting=_object(results.get("setting")),
        scores={one_line(name): _score(one_line(name), _object(raw)) for name, raw in results["scores"].items()},
        train=_train(_object(results.get("train"))),
        environment=_object(results.get("environment")),
        config=_object(config),
        planes=_planes(_object(results.get("planes"))),
    )


def one_line(text: Any) -> str:
    """`text` without control characters, so that no name can break a table or send commands to the terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def finite(value: Any) -> Number:
    """`value` as a float, or None for null, NaN, infinity and anything that is not a number."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None


def _read_results(path: Path) -> dict[str, Any]:
    remake = "Run  python -m rose_jax.main  with this workdir again: it continues where it stopped."
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        says = f"No {path}: either the folder is not a workdir or its run has not finished. {remake}"
        raise UserError(says) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}). Move it away. {remake}") from None
    if not isinstance(results, dict) or not isinstance(results.get("scores"), dict):
        raise UserError(f'{path} is not the results of a run: it has no "scores" object. Move it away. {remake}')
    if results.get("schema", SCHEMA) != SCHEMA:
        raise UserError(
            f"{path} has schema {one_line(results['schema'])}, this version reads {SCHEMA}. "
            "Report it with the version of rose_jax that wrote it."
        )
    return results


def _score(name: str, raw: dict[str, Any]) -> Score:
    numbers = (
        "last",
        "average",
        "old",
        "new",
        "forgetting",
        "drift_cosine",
        "ms_per_image",
        "forwards",
        "backwards",
    )
    return Score(
        name=name,
        per_stage=_row(raw.get("per_stage")),
        matrix=_grid(raw.get("matrix")),
        confusion=_grid(raw.get("confusion")),
        per_class=_row(raw.get("per_class")),
        drift_cosines=tuple(v for v in _row(raw.get("drift_cosines")) if v is not None),
        path=tuple(_points(moment) for moment in _list(raw.get("path"))),
        encoders=one_line(raw.get("encoders", "")),
        events=tuple(events.told(_object(raw.get("counts")))),
        origin=raw["origin"] if raw.get("origin") in ("ours", "published") else "paper",
        **{key: finite(raw.get(key)) for key in numbers},
    )


def _train(raw: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The totals under the key "", then each objective's own numbers, unless a single objective would repeat the totals."""
    totals = {key: value for key, value in raw.items() if not isinstance(value, dict | list)}
    named = {one_line(k): v for k, v in _object(raw.get("objectives", raw)).items() if isinstance(v, dict)}
    return ({"": totals} if totals else {}) | (named if len(named) > 1 or not totals else {})


def _planes(raw: dict[str, Any]) -> dict[str, Plane]:
    """A plane that is not whole is left out: its points and their labels belong together."""
    found = {}
    for objective, one in raw.items():
        classes, labels = (
            tuple(int(v) for v in _row(_object(one).get(key)) if v is not None) for key in ("classes", "labels")
        )
        means, points = (_points(_object(one).get(key)) for key in ("true_means", "points"))
        if classes and len(classes) == len(means) and len(labels) == len(points):
            found[one_line(objective)] = Plane(one_line(one.get("encoders", "")), classes, means, points, labels)
    return found


def _points(raw: Any) -> tuple[Point, ...]:
    """Those of a list that are whole and finite."""
    rows = (_row(pair) for pair in _list(raw))
    return tuple((row[0], row[1]) for row in rows if len(row) == 2 and row[0] is not None and row[1] is not None)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _row(raw: Any) -> tuple[Number, ...]:
    return tuple(finite(v) for v in _list(raw))


def _grid(raw: Any) -> Grid:
    return tuple(_row(r) for r in _list(raw))
