"""Goal: a batch respects every limit and waits no longer than the maximum."""

from hypothesis import given
from hypothesis import strategies as st

from batcher.policy.batch_closing import (
    ROUND_S,
    ROUND_TENANTS_MAX,
    BatchCandidate,
    BatchLimits,
    Instant,
    close_reason,
    closes_at_s,
    fitting_prefix,
    item_count_cap,
    turn_items,
)

limits = st.builds(
    BatchLimits,
    item_count_max=st.integers(1, 100),
    token_count_max=st.integers(1, 10_000),
    run_s_max=st.floats(0.1, 10),
    wait_s_max=st.floats(0, 1),
    slack_s_min=st.floats(0, 5),
)
waitings = st.builds(
    BatchCandidate,
    item_count=st.integers(0, 200),
    token_count=st.integers(0, 20_000),
    since_s=st.floats(0, 100),
    deadline_s=st.floats(900, 1100),
)
nows = st.builds(Instant, st.floats(50, 150), st.floats(900, 1100))


@given(st.lists(st.integers(0, 500)), st.integers(1, 100), st.integers(1, 2000))
def test_prefix_is_bounded_and_maximal(
    tokens: list[int], item_count_max: int, token_count_max: int
) -> None:
    count = fitting_prefix(tokens, item_count_max=item_count_max, token_count_max=token_count_max)
    assert count <= min(len(tokens), item_count_max)
    if tokens:
        assert count >= 1
    if count > 1:
        assert sum(tokens[:count]) <= token_count_max
    if count < min(len(tokens), item_count_max):
        assert sum(tokens[: count + 1]) > token_count_max


@given(waitings, limits, nows, st.booleans())
def test_items_never_wait_beyond_the_maximum(
    waiting: BatchCandidate, limits: BatchLimits, now: Instant, idle: bool
) -> None:
    reason = close_reason(waiting, limits=limits, idle=idle, now=now)
    if waiting.item_count == 0:
        assert reason is None
    elif reason is None:
        assert not idle
        assert waiting.item_count < limits.item_count_max
        assert waiting.token_count < limits.token_count_max
        assert now.monotonic_s < waiting.since_s + limits.wait_s_max


@given(waitings, limits, nows)
def test_open_batch_closes_at_the_computed_time(
    waiting: BatchCandidate, limits: BatchLimits, now: Instant
) -> None:
    if waiting.item_count == 0 or close_reason(waiting, limits=limits, idle=False, now=now):
        return
    at_s = closes_at_s(waiting, limits=limits, now=now)
    later = Instant(at_s + 1e-6, now.wall_s + (at_s - now.monotonic_s) + 1e-6)
    assert at_s >= now.monotonic_s
    assert close_reason(waiting, limits=limits, idle=False, now=later) is not None


@given(limits, st.floats(0, 1e5), st.integers(0, 1000))
def test_item_cap_is_at_least_one_and_bounded_by_time(
    limits: BatchLimits, items_per_s: float, concurrency: int
) -> None:
    cap = item_count_cap(limits, items_per_s=items_per_s, concurrency=concurrency)
    assert 1 <= cap <= limits.item_count_max
    if items_per_s > 0 and cap > 1:
        assert cap <= items_per_s * limits.run_s_max


@given(
    tenants=st.integers(1, 2000),
    rate=st.floats(0.1, 100_000),
    cap=st.integers(1, 1000),
)
def test_turns_give_every_tenant_one_in_a_round(tenants: int, rate: float, cap: int) -> None:
    turn = turn_items(tenants, items_per_s=rate, item_count_max=cap)
    assert 1 <= turn <= cap
    if tenants <= ROUND_TENANTS_MAX and turn > 1:
        assert tenants * turn <= rate * ROUND_S
    if turn < cap:
        assert rate / (turn + 1) <= ROUND_TENANTS_MAX / ROUND_S


def test_turns_are_batches_for_few_tenants_and_while_the_rate_is_unknown() -> None:
    def turn(tenants: int, rate: float) -> int:
        return turn_items(tenants, items_per_s=rate, item_count_max=100)

    assert [turn(n, 3200.0) for n in (1, 8, 50, 100, 1000)] == [100, 100, 16, 8, 8]
    assert turn(50, 0.0) == 100
    assert turn(50, 10.0) == 1
