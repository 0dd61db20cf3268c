"""Goal: limits apply exactly, and a job without limits never closes."""

from hypothesis import given
from hypothesis import strategies as st

from core.states import CloseReason
from jobs.store.job_options import (
    RATIO_SAMPLE_DEFAULT,
    JobBudget,
    budget_close_reason,
    crash_budget,
)

counts = st.integers(0, 10_000)


def due(budget: JobBudget, failed: int, succeeded: int, tokens: int = 0) -> CloseReason | None:
    return budget_close_reason(budget, succeeded=succeeded, failed=failed, total_tokens=tokens)


@given(succeeded=counts, failed=counts, tokens=counts)
def test_a_job_without_limits_never_closes(succeeded: int, failed: int, tokens: int) -> None:
    assert due(JobBudget(), failed, succeeded, tokens) is None


@given(most=counts, failed=counts, succeeded=counts)
def test_a_job_closes_above_its_failure_limit(most: int, failed: int, succeeded: int) -> None:
    budget = JobBudget(max_failed_items=most)
    reason = due(budget, failed, succeeded)
    assert reason is (CloseReason.FAILURE_BUDGET if failed > most else None)


@given(cap=st.integers(1, 10_000), tokens=counts)
def test_a_job_closes_when_it_reaches_the_token_cap(cap: int, tokens: int) -> None:
    reason = due(JobBudget(max_total_tokens=cap), 0, 1, tokens)
    assert reason is (CloseReason.SPEND_CAP if tokens >= cap else None)


@given(
    ratio=st.floats(0, 1), sample=st.none() | st.integers(1, 1000), succeeded=counts, failed=counts
)
def test_a_failure_ratio_counts_from_its_sample_size(
    ratio: float, sample: int | None, succeeded: int, failed: int
) -> None:
    budget = JobBudget(max_failed_ratio=ratio, failed_ratio_sample=sample)
    reason = due(budget, failed, succeeded)
    ran = succeeded + failed
    if ran < (sample or RATIO_SAMPLE_DEFAULT):
        assert reason is None
    else:
        assert (reason is CloseReason.FAILURE_BUDGET) == (failed > ratio * ran)


@given(failed=counts, succeeded=counts, tokens=counts, more=counts)
def test_more_failures_keep_a_close_due(
    failed: int, succeeded: int, tokens: int, more: int
) -> None:
    budget = JobBudget(max_failed_items=50, max_failed_ratio=0.3, max_total_tokens=5000)
    if due(budget, failed, succeeded, tokens) is not None:
        assert due(budget, failed + more, succeeded, tokens) is not None


@given(st.integers(1, 100_000_000))
def test_a_crash_budget_is_three_ends_of_each_two_hundredth_item(item_count: int) -> None:
    assert crash_budget(item_count) == max(60, 3 * item_count // 200)
