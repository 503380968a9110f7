"""The data file against numbers typed by hand from the paper's printed tables."""

import collections

import pytest

from rose_jax.report import paper

SETTINGS = [
    ("cifar100", 5),
    ("cifar100", 10),
    ("cifar100", 20),
    ("tinyimagenet", 5),
    ("tinyimagenet", 10),
    ("tinyimagenet", 20),
    ("imagenet100", 10),
]

ROSE = {
    "cold": (63.10, 53.48, 44.10, 47.07, 39.93, 31.57, 63.18),
    "warm": (66.70, 64.46, 59.54, 54.64, 51.11, 50.07, 69.62),
}

ROSE_SEEDS = {
    "cold": (
        (62.65, 0.51),
        (53.64, 0.71),
        (44.11, 0.14),
        (48.49, 1.08),
        (41.79, 1.45),
        (32.82, 1.00),
        (63.31, 0.94),
    ),
    "warm": (
        (66.85, 0.15),
        (64.34, 0.12),
        (59.19, 0.37),
        (54.31, 0.38),
        (51.11, 0.12),
        (50.02, 0.52),
        (69.25, 1.08),
    ),
}


def test_number_of_cells_in_each_table():
    assert collections.Counter(cell.table for cell in paper.cells()) == {
        "tab:b0": 10 * 7,
        "tab:b50": 13 * 7,
        "tab:ttt_compare": 2 * 6 * 3,
        "tab:unbalanced": 4,
        "tab:queue_capacity": 5,
        "tab:inference_time": 3,
        "tab:eliminate": 2 * 7,
        "tab:eliminate2": 2 * 6,
        "tab:alltttb0b50": 2 * 6 * 7,
        "tab:oracle": 2 * 3,
        "tab:statistic": 2 * 7,
    }


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_rose_row_of_both_main_tables(start):
    printed = [paper.lookup(dataset, start, tasks, "rose") for dataset, tasks in SETTINGS]
    assert tuple(cell.value for cell in printed) == ROSE[start]
    assert {cell.table for cell in printed} == {"tab:b0" if start == "cold" else "tab:b50"}
    seeds = [paper.several_seeds(dataset, start, tasks) for dataset, tasks in SETTINGS]
    assert tuple((cell.value, cell.std) for cell in seeds) == ROSE_SEEDS[start]


@pytest.mark.parametrize(
    ("dataset", "start", "tasks", "method", "value", "table"),
    [
        ("cifar100", "cold", 5, "lwf", 45.35, "tab:b0"),
        ("cifar100", "cold", 10, "adc", 46.48, "tab:b0"),
        ("cifar100", "cold", 20, "ldc", 36.91, "tab:b0"),
        ("tinyimagenet", "cold", 20, "efc", 28.69, "tab:b0"),
        ("imagenet100", "cold", 10, "fecam_c", 43.00, "tab:b0"),
        ("cifar100", "warm", 5, "fcs", 62.13, "tab:b50"),
        ("cifar100", "warm", 20, "fecam_1", 55.27, "tab:b50"),
        ("tinyimagenet", "warm", 10, "il2a", 36.55, "tab:b50"),
        ("tinyimagenet", "warm", 20, "sdc", 7.89, "tab:b50"),
        ("imagenet100", "warm", 10, "ssre", 59.32, "tab:b50"),
        ("tinyimagenet", "cold", 10, "cotta", 9.65, "tab:ttt_compare"),
        ("imagenet100", "warm", 10, "ttt++", 61.80, "tab:ttt_compare"),
        ("cifar100", "cold", 5, "tent", 36.12, "tab:alltttb0b50"),
        ("tinyimagenet", "warm", 5, "eata", 30.28, "tab:alltttb0b50"),
        ("cifar100", "warm", 20, "ttt", 27.93, "tab:alltttb0b50"),
        ("tinyimagenet", "cold", 10, "gd_oracle", 39.81, "tab:oracle"),
    ],
)
def test_spot_checks(dataset, start, tasks, method, value, table):
    cell = paper.lookup(dataset, start, tasks, method)
    assert (cell.value, cell.table) == (value, table)


def test_studies():
    capacity = [(cell.condition, cell.value) for cell in paper.cells("tab:queue_capacity")]
    assert capacity == [
        ("capacity 500", 51.45),
        ("capacity 1000", 53.10),
        ("capacity 2000", 53.37),
        ("capacity 3000", 53.48),
        ("capacity 5000", 53.11),
    ]
    assert {cell.condition: cell.value for cell in paper.cells("tab:unbalanced")} == {
        "balanced, selected classes": 49.08,
        "unbalanced, selected classes": 50.48,
        "balanced, other classes": 56.80,
        "unbalanced, other classes": 54.42,
    }
    assert [paper.inference_ms(m) for m in ("base", "gd", "rose")] == pytest.approx([7.6, 11.8, 13.6])
    eliminated = [cell.value for cell in paper.cells("tab:eliminate") if cell.condition == "eliminate"]
    assert eliminated == [63.09, 53.27, 43.68, 46.88, 39.67, 31.36, 62.52]
    dealt = [
        (cell.condition, cell.value) for cell in paper.cells("tab:eliminate2") if cell.dataset == "imagenet100"
    ]
    assert dealt == [("same", 60.80), ("distinct", 61.00)]


def test_tables_that_repeat_a_number_agree():
    printed = collections.defaultdict(set)
    for cell in paper.cells():
        if cell.unit == "%" and cell.condition in (None, "original", "capacity 3000"):
            printed[cell.dataset, cell.start, cell.tasks, cell.method].add(cell.value)
    assert {key: values for key, values in printed.items() if len(values) > 1} == {}


def test_main_table_keeps_the_papers_rows_and_its_dashes():
    cold = paper.main_table("imagenet100", "cold", 10)
    names = ["lwf", "sdc", "pass", "fetril", "fecam_1", "fecam_c", "efc", "adc", "ldc", "rose"]
    assert [cell.method for cell in cold] == names
    assert cold[names.index("efc")].value is None
    assert len(paper.main_table("cifar100", "warm", 10)) == 13
    assert paper.main_table("digits", "cold", 5) == []
    assert paper.main_table("cifar100", "lukewarm", 10) == []


def test_lookup_of_what_the_paper_does_not_have():
    assert paper.lookup("cifar100", "cold", 10, "base") is None
    assert paper.lookup("imagenet100", "cold", 10, "efc") is None
    assert paper.lookup("cifar100", "cold", 7, "rose") is None
    assert paper.lookup("digits", "cold", 5, "rose") is None


def test_spellings():
    assert paper.lookup("Tiny-ImageNet", "warm", 10, "FeCAM (c cov)").value == 50.48
    assert paper.lookup("tiny", "warm", 10, "fecam-1").value == 46.50
    assert paper.label("ttt++") == "TTT++"
    assert paper.label("something else") == "something else"
    assert all(paper.label(cell.method) != cell.method for cell in paper.cells())
