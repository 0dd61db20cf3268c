"""Goal: over ten seeds a role, every custom_id appears once, and counters and usage add up."""

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.test_kill_each_role import REPEATED_MAX
from tests.support.kills import kill_in_the_middle
from tests.support.stacks import ROLE_MODULES, Stack, running_stack

SEEDS = range(10)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    options = ("--simulated-latency-ms", "20", "--simulated-concurrency", "64")
    with running_stack(tmp_path_factory.mktemp("drill"), *options) as running:
        yield running


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("role", sorted(ROLE_MODULES))
def test_a_killed_role_loses_no_item(
    stack: Stack, role: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    killed = kill_in_the_middle(stack, role, seed)
    record_property("killed_at", killed.killed_at)
    record_property("executed_again", killed.repeated)
    assert 0 <= killed.repeated <= REPEATED_MAX[role]
