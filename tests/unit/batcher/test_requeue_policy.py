"""Goal: a record is requeued only if it pins or crowds others."""

import pytest

from batcher.policy.requeue_policy import should_requeue


@pytest.mark.parametrize(
    ("age_s", "pins", "crowds", "goes"),
    [
        (29.0, True, True, False),
        (31.0, True, False, True),
        (31.0, False, True, True),
        (31.0, False, False, False),
    ],
)
def test_only_an_old_record_that_pins_or_crowds_is_requeued(
    age_s: float, pins: bool, crowds: bool, goes: bool
) -> None:
    assert should_requeue(age_s=age_s, limit_s=30.0, pins=pins, crowds=crowds) is goes
