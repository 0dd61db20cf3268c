"""Goal: calls precede items, and no call precedes another."""

import pytest

from gpu_consumers.engines.engine_slots import scheduler_priority

ASKED = [-(2**31), -1, 0, 1, 2**31]


@pytest.mark.parametrize("asked", ASKED)
def test_all_calls_have_equal_priority(asked: int) -> None:
    assert scheduler_priority(asked, is_bulk=False) == 0


def test_items_follow_calls_in_requested_order() -> None:
    items = [scheduler_priority(asked, is_bulk=True) for asked in ASKED]
    assert items == sorted(items)
    assert min(items) > 0
