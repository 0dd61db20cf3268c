"""Goal: a role that takes over goes on with a pool's memory, and with none that is absurd."""

import msgspec
import pytest
from msgspec.structs import replace

from autoscaler.ownership.pool_memory import PoolMemory, decode_memory, encode_memory
from autoscaler.policy.scaling_history import first_history
from autoscaler.policy.signals import ArrivalRates
from tests.support.scaling import NOW_S

RATES = ArrivalRates(
    at_s=NOW_S,
    recent_per_s=4.0,
    fast_per_s=3.0,
    slow_per_s=2.0,
    variance_per_s=1.0,
    counted_tokens=5.0,
)
MEMORY = PoolMemory(history=first_history(NOW_S, 2), arrivals=RATES)


def test_a_memory_is_read_as_it_was_written() -> None:
    assert decode_memory("chat", encode_memory(MEMORY)) == MEMORY


@pytest.mark.parametrize(
    "name", [name for name in ArrivalRates.__struct_fields__ if name != "last_arrival_s"]
)
def test_a_memory_with_an_absurd_rate_is_not_used(name: str) -> None:
    absurd = replace(MEMORY, arrivals=replace(RATES, **{name: -1.0}))
    assert decode_memory("chat", encode_memory(absurd)) is None


def test_a_memory_of_a_release_without_the_mean_of_seconds_is_used() -> None:
    written = msgspec.json.decode(encode_memory(MEMORY))
    del written["arrivals"]["recent_per_s"]
    memory = decode_memory("chat", msgspec.json.encode(written))
    assert memory is not None
    assert memory.arrivals == replace(RATES, recent_per_s=0.0)
