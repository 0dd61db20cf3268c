"""Goal: times of stages fit their columns, and unknown ones are shown as unknown."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from api.views.item_routes import stages_object
from core.stages import STAGE_MS_MAX, whole_ms

CREATED = datetime(2026, 11, 27, tzinfo=UTC)
JOB = SimpleNamespace(created_at=CREATED, in_progress_at=CREATED + timedelta(seconds=2))
ROW = SimpleNamespace(
    queue_ms=100,
    batch_wait_ms=20,
    execution_ms=3000,
    result_ms=5,
    finished_at=CREATED + timedelta(seconds=10),
)


@pytest.mark.parametrize(
    ("seconds", "ms"), [(1.2345, 1234), (-5.0, 0), (1e12, STAGE_MS_MAX), (0.0, 0)]
)
def test_a_time_is_whole_and_bounded(seconds: float, ms: int) -> None:
    assert whole_ms(seconds) == ms


def test_the_stages_of_an_item_add_up_to_its_time() -> None:
    stages = stages_object(JOB, ROW)
    assert stages == {
        "gateway_s": 2.0,
        "intake_s": 4.875,
        "queue_s": 0.1,
        "batch_wait_s": 0.02,
        "execution_s": 3.0,
        "result_s": 0.005,
    }
    assert sum(stages.values()) == 10


def test_clocks_that_disagree_give_no_negative_time() -> None:
    row = SimpleNamespace(**{**vars(ROW), "execution_ms": 60_000})
    stages = stages_object(JOB, row)
    assert stages is not None
    assert stages["intake_s"] == 0


def test_an_item_without_times_shows_none() -> None:
    assert stages_object(JOB, SimpleNamespace(**{**vars(ROW), "queue_ms": None})) is None
    assert stages_object(SimpleNamespace(created_at=CREATED, in_progress_at=None), ROW) is None
