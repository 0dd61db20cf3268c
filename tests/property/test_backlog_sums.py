"""Goal: the backlog that follows each change of a load is that of a new count; nothing is lost."""

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from jobs.expansion.backlog import buckets_of
from jobs.expansion.backlog_sums import BacklogSums, BacklogWork, OctaveWork, job_tokens
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
    exact = fresh.places()
    for place, work in sums.places().items():
        assert place.span * DUE_SPAN_S <= work.deadline_s <= exact[place].deadline_s
    folded = sums.copy().by_octave(NOW_S)
    assert _folded(folded) == _counted(sums)
    for one in (one for works in folded.values() for one in works):
        left_s = one.work.deadline_s - NOW_S
        assert left_s < 2 ** (one.octave + 1)
        assert left_s >= 2**one.octave or one.octave == 0


def _folded(works: dict[str, list[OctaveWork]]) -> Counter[tuple[str, str, bool]]:
    counted: Counter[tuple[str, str, bool]] = Counter()
    for pool, of_pool in works.items():
        for one in of_pool:
            counted[pool, one.endpoint, one.is_blocked] += one.work.items
    return counted


def _counted(sums: BacklogSums) -> Counter[tuple[str, str, bool]]:
    counted: Counter[tuple[str, str, bool]] = Counter()
    for place, work in sums.places().items():
        counted[place.pool, place.endpoint, place.is_blocked] += work.items
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


@st.composite
def octave_works(draw: st.DrawFn) -> list[OctaveWork]:
    """Works of distinct octaves and endpoints, as sums are folded."""
    keys = draw(st.sets(st.tuples(st.integers(0, 32), st.sampled_from([*ENDPOINTS, "/v1/x"]))))
    works = []
    for octave, endpoint in sorted(keys):
        items = draw(st.integers(1, 1000))
        deadline_s = NOW_S + 2.0**octave + draw(st.integers(0, 2**octave // 2))
        work = BacklogWork(items, items * 7, items * 3, deadline_s)
        works.append(OctaveWork(octave, endpoint, False, work))
    return works


@given(works=octave_works(), count_max=st.integers(1, 64))
def test_buckets_are_few_and_lose_nothing(works: list[OctaveWork], count_max: int) -> None:
    buckets = buckets_of(works, count_max=count_max)
    work = [one.work for one in works]
    assert len(buckets) <= count_max
    assert _totals(buckets) == (
        sum(one.items for one in work),
        sum(one.prompt_tokens for one in work),
        sum(one.output_tokens for one in work),
    )
    deadlines = [bucket.deadline_s for bucket in buckets]
    assert deadlines == sorted(deadlines)
    if work:
        assert deadlines[0] == min(one.deadline_s for one in work)
    # No deadline becomes later: at each time at least the work is due that was due.
    for limit_s in deadlines:
        due = sum(one.items for one in work if one.deadline_s <= limit_s)
        assert sum(b.items for b in buckets if b.deadline_s <= limit_s) >= due


def _totals(buckets: list[BacklogBucket]) -> tuple[int, float, float]:
    return (
        sum(bucket.items for bucket in buckets),
        sum(bucket.prompt_tokens for bucket in buckets),
        sum(bucket.output_tokens for bucket in buckets),
    )
