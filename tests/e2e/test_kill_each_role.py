"""Goal: kill -9 of any role in the middle of a job loses no item and duplicates none."""

import pytest

from tests.support.kills import kill_in_the_middle
from tests.support.stacks import ROLE_MODULES, Stack

REPEATED_MAX = {
    "api": 0,
    "finaliser": 0,
    "webhooks": 0,
    "results-writer": 0,
    "intake": 2000,  # chunks sent after the last committed cursor
    "batcher": 2000,  # dispatched within one commit interval
    "batcher-interactive": 0,
    "gpu-consumer": 1000,  # two batches in flight, or 100 ms of throughput more than runs
}
"""Executions that each role's death may repeat, at 3,200 items/s."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("role", sorted(ROLE_MODULES))
def test_a_killed_role_loses_no_item_and_repeats_few(stack: Stack, role: str) -> None:
    killed = kill_in_the_middle(stack, role, seed=1)
    assert 0 <= killed.repeated <= REPEATED_MAX[role]
