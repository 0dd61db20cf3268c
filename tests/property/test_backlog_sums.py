"""Goal: the backlog that follows each change of a load is that of a new count; nothing is lost."""

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from jobs.expansion.backlog import buckets_of, octave
from jobs.expansion.backlog_sums import (
    BacklogPlace,
    BacklogSums,
    BacklogWork,
    PoolBacklog,
    job_tokens,
)
from jobs.expansion.load_sums import DUE_SPAN_S, JobLoad
from topics.records.scaling import BacklogBucket

NOW_S = 1_000_000.0
ENDPOINTS = ["/v1/chat/completions", "/v1/embeddings", "/v1/completions"]


@st.composite
def load(draw: st.DrawFn) -> JobLoad:
    total = draw(st.integers(0, 300))
    emitted = draw(st.integers(0, total))
    known = st.one_of(st.none(), st.integers(0, 10**6))
    number = draw(st.integers(0, 5))
    return JobLoad(
        job_id=UUID(int=number),
        tenant_id=UUID(int=number % 2),
        pool=f"pool-{number % 2}",
        total=total,
        emitted=emitted,
        # A row may be counted before the cursor passes its item.
        terminal=draw(st.integers(0, total)),
        item_bytes=draw(st.sampled_from([0, 100])),
        deadline_s=NOW_S + draw(st.sampled_from([-3.0, 5.0, 5.5, 60.0, 3_000.0, 86_400.0])),
        endpoint=draw(st.sampled_from(ENDPOINTS)),
        prompt_tokens=draw(known),
        output_tokens=draw(known),
        opens_s=draw(st.sampled_from([0.0, NOW_S + 100])),
    )


@given(history=st.lists(st.tuples(load(), st.sampled_from(["open", "blocked", "closed"]))))
def test_sums_after_any_history_are_those_of_the_jobs(history: list[tuple[JobLoad, str]]) -> None:
    sums = BacklogSums()
    kept: dict[str, dict[UUID, JobLoad]] = {"open": {}, "blocked": {}}
    for changed, state in history:
        for name, loads in kept.items():
            before = loads.pop(changed.job_id, None)
            after = changed if name == state else None
            if after is not None:
                loads[changed.job_id] = after
            sums.replace(before, after, is_blocked=name == "blocked")
    fresh = BacklogSums()
    for name, loads in kept.items():
        for job in loads.values():
            fresh.replace(None, job, is_blocked=name == "blocked")
    assert not sums.differs_from(fresh)
    assert _counted(sums) == naive_count(kept["open"].values(), kept["blocked"].values())
    for pool, places in sums.by_pool.items():
        for place, work in places.items():
            exact_s = fresh.by_pool[pool][place].deadline_s
            assert place.span * DUE_SPAN_S <= work.deadline_s <= exact_s


def _counted(sums: BacklogSums) -> Counter[tuple[str, str, bool]]:
    counted: Counter[tuple[str, str, bool]] = Counter()
    for pool, places in sums.by_pool.items():
        for place, work in places.items():
            counted[pool, place.endpoint, place.is_blocked] += work.items
    return counted


def naive_count(
    open_jobs: Iterable[JobLoad], blocked_jobs: Iterable[JobLoad]
) -> Counter[tuple[str, str, bool]]:
    """Count items one by one: item n has a row if n is below `terminal`."""
    counted: Counter[tuple[str, str, bool]] = Counter()
    for jobs, is_blocked in ((open_jobs, False), (blocked_jobs, True)):
        for job in jobs:
            for item in range(job.terminal, job.total):
                waits = is_blocked or (bool(job.opens_s) and item >= job.emitted)
                counted[job.pool, job.endpoint, waits] += 1
    return counted


@given(one=load(), items=st.integers(0, 300))
def test_tokens_of_the_items_that_are_left_are_the_mean_of_the_job(
    one: JobLoad, items: int
) -> None:
    items = min(items, one.total)
    tokens = job_tokens(one, items)
    assert (tokens.prompt, tokens.output) >= (0, 0)
    if one.total and one.prompt_tokens is not None and one.output_tokens is not None:
        assert 0 <= one.prompt_tokens * items / one.total - tokens.prompt < 1
        assert 0 <= one.output_tokens * items / one.total - tokens.output < 1


@given(left_s=st.floats(2, 10**9))
def test_an_octave_holds_times_up_to_twice_the_shortest(left_s: float) -> None:
    assert 2 ** octave(left_s) <= left_s < 2 ** (octave(left_s) + 1)


works = st.lists(
    st.builds(
        lambda endpoint, left_s, items: (
            BacklogPlace(endpoint, False, int(left_s)),
            BacklogWork(items, items * 7, items * 3, NOW_S + left_s),
        ),
        st.sampled_from([*ENDPOINTS, "/v1/rerank", "/v1/score"]),
        st.one_of(st.floats(-100, 10**7), st.integers(0, 23).map(lambda k: 2.0**k)),
        st.integers(1, 1000),
    )
)


@given(work=works, count_max=st.integers(1, 64))
def test_buckets_are_few_and_lose_nothing(work: PoolBacklog, count_max: int) -> None:
    buckets = buckets_of(work, NOW_S, count_max=count_max)
    assert len(buckets) <= count_max
    assert _totals(buckets) == (
        sum(one.items for _, one in work),
        sum(one.prompt_tokens for _, one in work),
        sum(one.output_tokens for _, one in work),
    )
    deadlines = [bucket.deadline_s for bucket in buckets]
    assert deadlines == sorted(deadlines)
    if work:
        assert deadlines[0] == min(one.deadline_s for _, one in work)
    # No deadline becomes later: at each time at least the work is due that was due.
    for limit_s in deadlines:
        due = sum(one.items for _, one in work if one.deadline_s <= limit_s)
        assert sum(b.items for b in buckets if b.deadline_s <= limit_s) >= due


def _totals(buckets: list[BacklogBucket]) -> tuple[int, float, float]:
    return (
        sum(bucket.items for bucket in buckets),
        sum(bucket.prompt_tokens for bucket in buckets),
        sum(bucket.output_tokens for bucket in buckets),
    )
