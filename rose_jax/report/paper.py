"""The numbers printed in the paper, from paper_tables.json. Each names the table it stands in by the table's label."""

import functools
import json
import re
from dataclasses import dataclass
from importlib import resources

MAIN_TABLES = {"cold": "tab:b0", "warm": "tab:b50"}

# Where the paper prints a table or figure, for readers; those from Table 7 on are in its supplement.
PLACES = {
    "fig:testnum": "Figure 3",
    "fig:oldnew": "Figure 4",
    "fig:acc_stage": "Figure 5",
    "fig:driftcifar": "Figure 6",
    "tab:b0": "Table 1",
    "tab:b50": "Table 2",
    "tab:ttt_compare": "Table 3",
    "tab:unbalanced": "Table 4",
    "tab:queue_capacity": "Table 5",
    "tab:inference_time": "Table 6",
    "tab:eliminate": "Table 7",
    "tab:eliminate2": "Table 8",
    "tab:alltttb0b50": "Table 10",
    "tab:oracle": "Table 11",
    "tab:statistic": "Table 12",
}

DATASETS = {
    "cifar100": "CIFAR-100",
    "tinyimagenet": "TinyImageNet",
    "imagenet100": "ImageNet-100",
    "digits": "digits",
}


@dataclass(frozen=True)
class Cell:
    """One printed number. `value` is None where the paper prints a dash."""

    table: str
    method: str
    dataset: str | None
    start: str | None
    tasks: int | None
    value: float | None
    condition: str | None = None  # what a study varies: "capacity 500", "eliminate", ...
    std: float | None = None
    unit: str = "%"


def lookup(dataset: str, start: str, tasks: int, method: str) -> Cell | None:
    """The paper's last accuracy of `method` in this setting, or None if it prints none."""
    found = (c for c in _in_setting(dataset, start, tasks) if c.method == canonical(method))
    return next((c for c in found if c.condition is None and c.unit == "%" and c.value is not None), None)


def main_table(dataset: str, start: str, tasks: int) -> list[Cell]:
    """The column of Table 1 (cold) or 2 (warm) for this setting, in the paper's order; [] if it has none."""
    return [c for c in _in_setting(dataset, start, tasks) if c.table == MAIN_TABLES.get(start)]


def several_seeds(dataset: str, start: str, tasks: int) -> Cell | None:
    """RoSE's mean and deviation over three seeds (tab:statistic)."""
    return study_cell("tab:statistic", dataset, start, tasks, condition="three seeds")


def study_cell(
    table: str, dataset: str, start: str, tasks: int, *, method: str = "rose", condition: str | None = None
) -> Cell | None:
    """A cell of one of the paper's studies, e.g. tab:queue_capacity under "capacity 500"."""
    where = (table, canonical(method), condition)
    found = _in_setting(dataset, start, tasks)
    return next((c for c in found if (c.table, c.method, c.condition) == where), None)


def inference_ms(method: str) -> float | None:
    """Milliseconds per image that the paper measured (tab:inference_time)."""
    found = (c.value for c in cells("tab:inference_time") if c.method == canonical(method))
    return next((1000 * value for value in found if value is not None), None)


def cells(table: str | None = None) -> tuple[Cell, ...]:
    """All cells in the paper's order, or those of one table, e.g. "tab:queue_capacity"."""
    return tuple(cell for cell in _load()[0] if table is None or cell.table == table)


def _in_setting(dataset: str, start: str, tasks: int) -> list[Cell]:
    where = (canonical_dataset(dataset), start, tasks)
    return [c for c in cells() if (c.dataset, c.start, c.tasks) == where]


def label(method: str) -> str:
    """The method as the paper spells it; a name the paper does not have stays as it is."""
    return _load()[1].get(canonical(method), method)


def place(label: str) -> str:
    """ "Table 1" for tab:b0; what is no label of the paper's stays as it is."""
    return PLACES.get(label, label)


def dataset_label(dataset: str) -> str:
    return DATASETS.get(canonical_dataset(dataset), dataset)


def canonical(method: str) -> str:
    """ "FeCAM (c cov)", "fecam-c" and "fecam_c" are one method."""
    key = re.sub(r"[\s_\-()]+", "_", method.strip().lower()).strip("_")
    return _ALIASES.get(key, key)


def canonical_dataset(dataset: str) -> str:
    key = re.sub(r"[^a-z0-9]", "", dataset.lower())
    return {"tiny": "tinyimagenet", "tinyimagenet200": "tinyimagenet"}.get(key, key)


_ALIASES = {
    "fecam": "fecam_c",
    "fecam_c_cov": "fecam_c",
    "fecam_1_cov": "fecam_1",
    "fecam1": "fecam_1",
    "fecam_common": "fecam_1",
    "tttpp": "ttt++",
    "ttt_plus_plus": "ttt++",
    "rose_ours": "rose",
}


@functools.cache
def _load() -> tuple[tuple[Cell, ...], dict[str, str]]:
    """Every cell, and the methods as the paper spells them."""
    raw = json.loads(resources.files(__package__).joinpath("paper_tables.json").read_text(encoding="utf-8"))
    return tuple(Cell(**cell) for cell in raw["cells"]), raw["methods"]
