"""Runs of this folder paint no figures; those in processes of their own (test_kill) do."""

import pytest
from support import unpainted


@pytest.fixture(scope="module", autouse=True)
def no_painting():
    with unpainted():
        yield
