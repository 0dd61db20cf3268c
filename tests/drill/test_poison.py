"""Goal: twenty items that crash their replica fail alone, after at most three deaths each."""

from pathlib import Path

import pytest

from tests.support.poison_items import POISON_COUNT, TRIES_MAX, poisoned_stack, run_poison


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_items_that_crash_their_replica_fail_alone(tmp_path: Path, seed: int) -> None:
    with poisoned_stack(tmp_path / "stack") as stack:
        seen = run_poison(stack, ["crash"] * POISON_COUNT, seed)

    assert seen.failed == seen.wanted
    assert seen.restarts <= TRIES_MAX * POISON_COUNT
