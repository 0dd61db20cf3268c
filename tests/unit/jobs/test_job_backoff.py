"""Goal: jobs that a throttling store refused together come back one by one, and later each time."""

from uuid import UUID

import pytest

from jobs.leasing.job_backoff import RULES, JobBackoff

JOB, OTHER = UUID(int=1), UUID(int=2)


def test_the_longest_wait_doubles_up_to_a_minute_and_starts_again_after_a_success() -> None:
    backoff = JobBackoff(fraction=lambda: 1.0)
    assert [backoff.next_s(JOB) for _ in range(5)] == [10.0, 20.0, 40.0, 60.0, 60.0]
    assert backoff.next_s(OTHER) == 10.0
    assert backoff.has_failed(JOB)
    backoff.reset(JOB)
    assert not backoff.has_failed(JOB)
    assert backoff.next_s(JOB) == 10.0


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.99])
def test_a_wait_has_full_jitter(fraction: float) -> None:
    backoff = JobBackoff(fraction=lambda: fraction)
    assert backoff.next_s(JOB) == fraction * RULES.backoff_s


def test_jobs_that_failed_long_ago_are_forgotten() -> None:
    backoff = JobBackoff(fraction=lambda: 1.0)
    for number in range(10_001):
        backoff.next_s(UUID(int=number))
    assert not backoff.has_failed(UUID(int=0))
    assert backoff.has_failed(UUID(int=10_000))


def test_a_job_waits_until_its_backoff_ends() -> None:
    backoff = JobBackoff(fraction=lambda: 1.0)
    assert not backoff.is_waiting(JOB, now_s=0.0)
    backoff.next_s(JOB, now_s=100.0)
    assert backoff.is_waiting(JOB, now_s=109.9)
    assert not backoff.is_waiting(JOB, now_s=110.0)
    backoff.next_s(JOB, now_s=110.0)
    backoff.reset(JOB)
    assert not backoff.is_waiting(JOB, now_s=110.0)
