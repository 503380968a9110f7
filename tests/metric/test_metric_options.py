"""Names, options and what tells outcomes apart."""

import pytest
from support import make_parts

from rose_jax.config import Config, validate
from rose_jax.errors import UserError
from rose_jax.experiment import check_needs
from rose_jax.methods import METHODS, Row, resolve
from rose_jax.models.tiny import tiny
from rose_jax.run.identity import scoring_digest
from rose_jax.runtime.workdir import difference
from rose_jax.testtime.evolution import part_size


def test_every_row_may_be_whitened():
    for name, row in resolve([f"{name}_whitened" for name in METHODS]).items():
        assert row == METHODS[name.removesuffix("_whitened")]._replace(classifier="whitened", origin="ours")
    assert resolve(["lwf+rose_whitened"])["lwf+rose_whitened"] == Row(
        "lwf", "projector", "rose", "whitened", "ours"
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("rose_whitend", "rose_whitened"),
        ("rosse_whitened", "rose_whitened"),
        ("rosse", "rose"),
        ("lwf+ros_whitened", "lwf+rose_whitened"),
    ],
)
def test_mistyped_names(name, hint):
    with pytest.raises(UserError) as error:
        resolve([name])
    assert f"Did you mean '{hint}'?" in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(source="newst"), "config.metric.source 'newst'. Did you mean 'newest'"),
        (dict(source="stream"), "config.metric.source 'stream'"),
        (dict(kind="LDA"), "config.metric.kind"),
        (dict(error="stage"), "config.metric.error"),
        (dict(shrinkage="oas"), "config.metric.shrinkage"),
        (dict(ridge=-0.1), "config.metric.ridge is -0.1"),
        (dict(queue_ridge=-0.1), "config.metric.queue_ridge is -0.1"),
        (dict(ridge=float("nan")), "config.metric.ridge is nan"),
        (dict(per_class_weight=1.5), "config.metric.per_class_weight is 1.5"),
        (dict(per_class_weight=0.1, source="newest"), "needs config.metric.source evolved"),
        (dict(refresh=-1), "config.metric.refresh is -1"),
    ],
)
def test_nonsense_is_refused(options, words):
    config = Config()
    for key, value in options.items():
        setattr(config.metric, key, value)
    with pytest.raises(UserError, match=words):
        validate(config)


def test_options_of_the_metric_name_the_outcomes_of_whitened_rows_alone():
    before, after = Config(), Config()
    after.metric.ridge = 0.5
    rose, whitened = METHODS["rose"], resolve(["rose_whitened"])["rose_whitened"]
    assert scoring_digest(before, rose) == scoring_digest(after, rose)
    assert scoring_digest(before, whitened) != scoring_digest(after, whitened)
    assert scoring_digest(before, whitened) != scoring_digest(before, rose)
    assert difference(as_dict(before), as_dict(after)) == []


def as_dict(config):
    import json

    return json.loads(config.to_json())


@pytest.mark.parametrize(
    ("rows", "refresh", "granularity", "size"),
    [
        (128, 64, 1, 64),
        (128, 64, 128, 128),
        (128, 100, 1, 128),
        (128, 1, 4, 4),
        (151, 64, 1, 151),
        (96, 20, 3, 24),
    ],
)
def test_the_metric_is_refreshed_at_borders_of_updates(rows, refresh, granularity, size):
    assert part_size(rows, refresh, granularity) == size


@pytest.mark.parametrize("name", ["base_whitened", "projector_whitened", "gd_whitened"])
def test_the_queue_s_metric_asks_for_a_queue(name):
    config = Config()
    config.metric.source = "queue"
    parts = make_parts(validate(config), tiny(2), 10, (8, 8, 3))
    with pytest.raises(UserError, match=f"{name}.*needs a queue.*rose, gd_queue.*metric.source=evolved"):
        check_needs(resolve([name]), parts)
    check_needs(resolve(["rose_whitened", "gd_queue_whitened"]), parts)
