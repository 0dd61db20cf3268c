"""Goal: a replica names the jobs whose items it has had for a while, and no others."""

from uuid import UUID

import pytest

from gpu_consumers.flow_control import in_flight_jobs
from gpu_consumers.flow_control.in_flight_jobs import IN_FLIGHT_S_MIN, REPEAT_S, InFlightJobs
from tests.unit.gpu_consumers.replicas import batch_of


def test_a_job_is_named_from_a_batch_of_some_age_until_its_last_item_ended() -> None:
    tracked, batch = InFlightJobs(), batch_of(b"a", b"b")
    tracked.add(batch, 2, now_s=0.0)
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN - 0.1) is None
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN) == [UUID(int=1)]
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN + REPEAT_S - 0.1) is None
    tracked.remove(batch, 1)
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN + REPEAT_S) == [UUID(int=1)]
    tracked.remove(batch, 1)
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN + 2 * REPEAT_S) == []
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN + 3 * REPEAT_S) is None


def test_a_batch_that_comes_twice_is_tracked_until_both_have_ended() -> None:
    tracked, batch = InFlightJobs(), batch_of(b"a")
    for _ in range(2):
        tracked.add(batch, 1, now_s=0.0)
    tracked.remove(batch, 1)
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN) == [UUID(int=1)]
    tracked.remove(batch, 1)
    tracked.remove(batch, 1)  # an end too many
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN + REPEAT_S) == []


def test_the_jobs_of_the_oldest_batches_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_jobs, "JOBS_MAX", 3)
    tracked = InFlightJobs()
    for number in (3, 2, 2, 4, 1):
        tracked.add(batch_of(b"a", job_number=number), 1, now_s=0.0)
    assert tracked.job_ids_to_publish(now_s=IN_FLIGHT_S_MIN) == [
        UUID(int=number) for number in (3, 2, 4)
    ]
