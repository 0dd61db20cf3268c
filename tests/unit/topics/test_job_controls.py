"""Goal: the cache of control states is bounded; the newest state wins and a close is final."""

from uuid import UUID

import msgspec
import pytest

from core.states import CloseReason
from tests.unit.batcher.builders import job_ref
from topics.records.records import JobControl
from topics.tail_readers.job_controls import (
    CONTROL_AGE_MS_MAX,
    JobControlCache,
    effective_deadline_s,
    effective_priority,
    obsolete_reason,
)

JOB = job_ref(deadline_s=1000.0, version=3, priority=7)


def control(number: int, version: int = 1, **state: object) -> JobControl:
    return msgspec.structs.replace(JobControl(UUID(int=number), version), **state)


def closed(number: int) -> JobControl:
    return control(number, closed=CloseReason.CANCELLED)


def known(controls: JobControlCache, *numbers: int) -> list[bool]:
    return [controls.get(UUID(int=number)) is not None for number in numbers]


@pytest.fixture
def controls() -> JobControlCache:
    return JobControlCache()


def test_a_job_is_evicted_when_its_records_have_left_the_log(controls: JobControlCache) -> None:
    controls.apply(closed(1), 1_000)
    controls.apply(control(2), 2_000)
    controls.evict_stale(1_000 + CONTROL_AGE_MS_MAX)
    assert known(controls, 1, 2) == [True, True]
    controls.evict_stale(1_001 + CONTROL_AGE_MS_MAX)
    assert known(controls, 1, 2) == [False, True]


def test_the_oldest_of_too_many_jobs_are_evicted() -> None:
    controls = JobControlCache(count_max=3)
    for number in range(1, 6):
        controls.apply(closed(number), number)
        controls.evict_stale(0)
    assert known(controls, 1, 2, 3, 4, 5) == [False, False, True, True, True]
    assert len(controls) == 3


def test_a_job_that_is_closed_again_counts_as_new() -> None:
    controls = JobControlCache(count_max=2)
    for number in (1, 2, 1, 3):
        controls.apply(closed(number), number)
    controls.evict_stale(0)
    assert known(controls, 1, 2, 3) == [True, False, True]


def test_a_tombstone_discards_a_job(controls: JobControlCache) -> None:
    controls.apply(closed(1), 1)
    controls.discard(UUID(int=1).bytes)
    controls.discard(b"no id")
    controls.evict_stale(0)
    assert known(controls, 1) == [False]


@pytest.mark.parametrize("order", [(2, 5), (5, 2)])
def test_the_highest_version_wins_in_any_order(
    controls: JobControlCache, order: tuple[int, int]
) -> None:
    for version in order:
        controls.apply(control(1, version, priority=version), version)
    assert controls.get(UUID(int=1)) == control(1, 5, priority=5)


def test_nothing_follows_a_close(controls: JobControlCache) -> None:
    for state in (control(1, 4), closed(1), control(1, 9, paused=True)):
        controls.apply(state, 1)
    found = controls.get(UUID(int=1))
    assert found is not None
    assert found.closed is CloseReason.CANCELLED


def test_a_record_below_the_void_version_is_obsolete() -> None:
    assert obsolete_reason(JOB, control(1, 4, void_below=4), None) == "void"
    assert obsolete_reason(JOB, control(1, 4, void_below=3), None) is None
    assert obsolete_reason(JOB, closed(1), None) == "closed"
    assert obsolete_reason(JOB, None, None) is None


def test_a_deadline_is_decided_by_the_databases_time() -> None:
    later = control(1, 4, deadline_s=2000.0)
    assert obsolete_reason(JOB, None, 999.9) is None
    assert obsolete_reason(JOB, None, 1000.0) == "expired"
    assert obsolete_reason(JOB, later, 1000.0) is None
    assert obsolete_reason(JOB, later, 2000.0) == "expired"
    assert effective_deadline_s(JOB, None) == 1000.0


def test_a_newer_state_overrides_the_priority() -> None:
    assert effective_priority(JOB, None) == 7
    assert effective_priority(JOB, control(1, 4, priority=0)) == 0
    assert effective_priority(JOB, closed(1)) == 7
