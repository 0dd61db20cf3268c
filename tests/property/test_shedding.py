"""Goal: work is shed in one order, whatever the queue, the promises and the limits are."""

from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from core.overload.shedding import (
    CallQueue,
    ShedClass,
    SheddingLimits,
    admission_s,
    backlog_limit_s,
    is_over_share,
    is_shed,
    retry_after_s,
)

counts = st.integers(0, 10_000)
ratios = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3).map(sorted)
limits = st.builds(SheddingLimits, st.floats(0.1, 600.0), ratios.map(tuple))
queues = st.builds(
    CallQueue, counts, st.floats(0.01, 1_000.0), st.tuples(counts, counts, counts, counts)
)


@given(queue=queues, limits=limits)
def test_nobody_of_a_later_class_is_shed_while_an_earlier_class_is_admitted(
    queue: CallQueue, limits: SheddingLimits
) -> None:
    """Also not while one of the two returns to a promised place and the other does not."""
    for earlier, later in pairwise(ShedClass):
        for returns_earlier, returns_later in product((False, True), repeat=2):
            if is_shed(queue, later, limits.wait_limit_s(later), is_returning=returns_later):
                limit_s = limits.wait_limit_s(earlier)
                assert is_shed(queue, earlier, limit_s, is_returning=returns_earlier)


@given(queue=queues, limits=limits, shed_class=st.sampled_from(ShedClass))
def test_a_longer_queue_admits_nobody_more(
    queue: CallQueue, limits: SheddingLimits, shed_class: ShedClass
) -> None:
    limit_s = limits.wait_limit_s(shed_class)
    longer = queue._replace(waiting=queue.waiting + 1)
    assert is_shed(longer, shed_class, limit_s) >= is_shed(queue, shed_class, limit_s)


@given(queue=queues, limits=limits, shed_class=st.sampled_from(ShedClass))
def test_a_place_that_is_due_is_never_worse_than_none(
    queue: CallQueue, limits: SheddingLimits, shed_class: ShedClass
) -> None:
    limit_s = limits.wait_limit_s(shed_class)
    if is_shed(queue, shed_class, limit_s, is_returning=True):
        assert is_shed(queue, shed_class, limit_s)


@given(queue=queues, limits=limits)
def test_a_pool_below_half_the_limit_admits_whatever_is_promised(
    queue: CallQueue, limits: SheddingLimits
) -> None:
    for shed_class in ShedClass:
        limit_s = limits.wait_limit_s(shed_class)
        if queue.wait_s < limit_s * 0.49:
            assert not is_shed(queue, shed_class, limit_s)


@given(waiting=counts, shed_class=st.sampled_from(ShedClass))
def test_a_pool_of_unknown_rate_refuses_nobody(waiting: int, shed_class: ShedClass) -> None:
    assert not is_shed(CallQueue(waiting, 0.0), shed_class, 0.0)


@given(queue=queues, limits=limits, shed_class=st.sampled_from(ShedClass))
def test_each_refused_caller_is_told_a_later_time_than_the_one_before(
    queue: CallQueue, limits: SheddingLimits, shed_class: ShedClass
) -> None:
    limit_s = limits.wait_limit_s(shed_class)
    promised = [*queue.promised]
    promised[shed_class] += 1
    next_queue = queue._replace(promised=(promised[0], promised[1], promised[2], promised[3]))
    first_s = admission_s(queue, shed_class, limit_s)
    assert admission_s(next_queue, shed_class, limit_s) >= first_s > 0


@given(seconds=st.floats(0, 1e9), s_max=st.integers(1, 60))
def test_retry_after_is_rounded_up_within_its_bounds(seconds: float, s_max: int) -> None:
    told = retry_after_s(seconds, s_max=s_max)
    assert 1 <= told <= s_max
    assert told >= min(seconds, s_max)
    assert told - seconds < 1 or told == 1


@given(
    others=st.lists(st.integers(0, 1_000), max_size=8),
    own=st.integers(0, 1_000),
    weight=st.integers(1, 1_000),
    capacity=st.integers(0, 500),
)
def test_a_tenant_is_above_its_share_only_if_others_use_the_pool(
    others: list[int], own: int, weight: int, capacity: int
) -> None:
    """The others have a weight of 1 each."""
    total, weights = own + sum(others), weight + len(others)
    is_over = is_over_share(own, total, weight=weight, weights=weights, capacity=capacity)
    share = weight / weights * max(total + 1, capacity)
    assert is_over == (own > 0 and own + 1 > share)
    if not others:
        assert not is_over


@given(limits=limits, backlog_s=st.floats(1, 1e6))
def test_a_tenant_above_its_share_has_the_lower_backlog_limit(
    limits: SheddingLimits, backlog_s: float
) -> None:
    over = backlog_limit_s(ShedClass.OVER_QUOTA_BULK, backlog_s, limits)
    assert over <= backlog_limit_s(ShedClass.BULK, backlog_s, limits) == backlog_s
