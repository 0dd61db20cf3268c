"""Worlds with the seeds of the tests on altered models."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.gpu_consumers.weights.replica_world import World

SEEDS = 50


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[World]:
    """Yield a new world for each seed; a failure names the seed by the name of its folder."""
    return (World(tmp_path / f"seed-{seed}", seed) for seed in range(SEEDS))
