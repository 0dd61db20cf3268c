"""Goal: 20 of 5,000 items that end, freeze, overfill or stop their replica fail alone."""

from pathlib import Path

import pytest

from tests.support.poison_items import POISON_COUNT, TRIES_MAX, poisoned_stack, run_poison

FAULTS = ["crash"] * 3 + ["freeze"] + ["oom"] * 5 + ["hang"] * 5 + ["error500"] * 5 + ["overflow"]


@pytest.mark.timeout(600)
def test_poison_of_every_kind_fails_alone(tmp_path: Path) -> None:
    with poisoned_stack(tmp_path / "stack") as stack:
        seen = run_poison(stack, FAULTS, seed=13)

    assert len(seen.wanted) == POISON_COUNT
    assert seen.failed == seen.wanted
    assert seen.restarts <= TRIES_MAX * sum(fault in {"crash", "freeze"} for fault in FAULTS)
