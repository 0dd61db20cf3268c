"""Goal: a reason is named only where it is known, and a job's reasons sum to its open items."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.estimates.waiting_reasons import (
    ItemCounts,
    JobBlock,
    PoolView,
    WaitingReason,
    waiting_histogram,
)

COUNTS = st.builds(
    ItemCounts,
    total=st.integers(0, 100),
    ended=st.integers(0, 100),
    emitted=st.integers(0, 100),
    copies=st.integers(-5, 100),
    retries=st.integers(0, 100),
)
POOLS = st.builds(
    PoolView,
    has_replica=st.booleans(),
    of_tenant=st.none() | st.floats(0, 10),
    of_all=st.floats(0, 10),
)
COUNTED = ItemCounts(total=100, ended=10, emitted=60, copies=5, retries=7)


@given(COUNTS, st.none() | st.sampled_from(WaitingReason), POOLS)
def test_the_reasons_sum_to_the_items_without_a_row(
    counts: ItemCounts, block: WaitingReason | None, pool: PoolView
) -> None:
    found = waiting_histogram(counts, block, pool)
    assert sum(found.values()) == max(0, counts.total - counts.ended)
    assert all(count > 0 for count in found.values())
    assert set(found) <= {reason.value for reason in WaitingReason}


def test_items_wait_for_a_window_a_turn_a_retry_or_their_original() -> None:
    found = waiting_histogram(COUNTED, None, PoolView(of_tenant=45.0, of_all=45.0))
    assert found == {"window": 40, "fair_turn": 38, "backoff": 7, "copy": 5}


def test_off_peak_hours_hold_only_what_was_not_emitted() -> None:
    pool = PoolView(of_tenant=45.0, of_all=45.0)
    found = waiting_histogram(COUNTED, WaitingReason.OFF_PEAK, pool)
    assert found == {"off_peak": 40, "fair_turn": 38, "backoff": 7, "copy": 5}


def test_a_pool_is_full_when_only_other_tenants_have_items_on_the_log() -> None:
    fresh = ItemCounts(total=10, ended=0)
    assert waiting_histogram(fresh, None, PoolView(of_tenant=0.0, of_all=9.0)) == {"pool_full": 10}
    assert waiting_histogram(fresh, None, PoolView(of_tenant=0.0, of_all=0.0)) == {"window": 10}
    assert waiting_histogram(fresh, None, PoolView(of_tenant=None, of_all=9.0)) == {"window": 10}


def test_without_a_replica_only_retries_and_copies_wait_for_something_else() -> None:
    found = waiting_histogram(COUNTED, None, PoolView(has_replica=False))
    assert found == {"no_replica": 78, "backoff": 7, "copy": 5}
    found = waiting_histogram(COUNTED, None, PoolView(has_version=False))
    assert found == {"no_version": 78, "backoff": 7, "copy": 5}


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (JobBlock(), None),
        (JobBlock(is_paused=True), WaitingReason.PAUSED),
        (JobBlock(is_quarantined=True, is_paused=True), WaitingReason.QUARANTINE),
        (JobBlock(is_off_peak=True), WaitingReason.OFF_PEAK),
        (JobBlock(is_off_peak=True, is_paused=True), WaitingReason.PAUSED),
    ],
)
def test_a_block_of_the_job_comes_first(block: JobBlock, reason: WaitingReason | None) -> None:
    assert block.reason is reason
    if reason is not None and reason.holds_emitted:
        assert waiting_histogram(COUNTED, reason, PoolView()) == {reason.value: 90}
