"""Goal: each pool with bulk work has one record a second, and one whose work ended a few more."""

from uuid import UUID

import pytest

from jobs.expansion.backlog import (
    FORGET_S,
    REPEAT_S,
    SERVED_POOLS_MAX,
    BacklogSnapshot,
    PublishedPools,
    ValidatingFiles,
    buckets_of,
)
from jobs.expansion.backlog_sums import BacklogSums, BacklogWork, OctaveWork
from jobs.expansion.job_loads import LeaseState
from jobs.expansion.load_cache import OpenLoads
from jobs.expansion.load_sums import JobLoad
from topics.records.scaling import BACKLOG_BUCKETS_MAX, BacklogBucket

CHAT, EMBEDDING = "/v1/chat/completions", "/v1/embeddings"
NOW_S = 1_000_000.0


def job(number: int = 1, left_s: float = 3600.0, **fields: object) -> JobLoad:
    defaults = JobLoad(
        UUID(int=number),
        UUID(int=9),
        "pool",
        total=100,
        emitted=40,
        terminal=20,
        deadline_s=NOW_S + left_s,
        endpoint=CHAT,
        prompt_tokens=5000,
        output_tokens=1000,
    )
    return defaults._replace(**fields)  # type: ignore[arg-type]


def snapshot(loads: OpenLoads, **validating: ValidatingFiles) -> BacklogSnapshot:
    return BacklogSnapshot(NOW_S, loads.backlog.copy().by_octave(NOW_S), loads.epochs(), validating)


def with_jobs(*loads: JobLoad) -> OpenLoads:
    found = OpenLoads()
    found.openings.now_s = NOW_S
    for one in loads:
        found.replace(one.job_id, one)
    return found


def test_the_octaves_begin_at_two_seconds_and_end() -> None:
    lefts = [-1e12, -1.0, 0.0, 1.9, 2.0, 3.9, 4.0, 3600.0, 1e15]
    found = []
    for left_s in lefts:
        sums = BacklogSums()
        sums.replace(None, job(left_s=left_s))
        found += sums.copy().by_octave(NOW_S)["pool"]
    assert [one.octave for one in found] == [0, 0, 0, 0, 1, 1, 2, 11, 32]


def test_a_record_tells_the_work_without_a_row_by_octave_and_endpoint() -> None:
    loads = with_jobs(
        job(1),
        job(2, left_s=3000.0, total=10, emitted=0, terminal=0, prompt_tokens=None),
        job(3, endpoint=EMBEDDING, output_tokens=0),
        job(4, left_s=60.0, terminal=100, emitted=100),
    )
    record = snapshot(loads).record("intake-1", "pool")
    assert record.buckets == [
        BacklogBucket(NOW_S + 3000, CHAT, 90, 4000.0, 800.0 + 2560.0),
        BacklogBucket(NOW_S + 3600, EMBEDDING, 80, 4000.0, 0.0),
    ]
    assert record.paused == []
    assert (record.intake_id, record.pool, record.at_s) == ("intake-1", "pool", NOW_S)
    assert (record.next_deadline_s, record.validating, record.epoch) == (NOW_S + 3000, 0, 0)


def test_work_that_may_not_run_is_apart() -> None:
    loads = with_jobs(job(1), job(2, not_before_s=NOW_S + 50))
    loads.replace_blocked(UUID(int=3), job(3, left_s=100.0))
    record = snapshot(loads).record("intake-1", "pool")
    # Of the job that waits for its time, 20 items are on the log and run.
    assert [(one.items, one.prompt_tokens) for one in record.buckets] == [(100, 5000.0)]
    assert [(one.items, one.deadline_s - NOW_S) for one in record.paused] == [(80, 100), (60, 3600)]
    assert record.next_deadline_s == NOW_S + 3600  # what is paused is not due
    loads.replace_blocked(UUID(int=3), None)
    loads.replace(UUID(int=3), job(3, left_s=100.0))
    record = snapshot(loads).record("intake-1", "pool")
    assert [one.items for one in record.buckets] == [80, 100]
    assert [one.items for one in record.paused] == [60]


def test_the_next_deadline_is_that_of_work_that_may_run_before_it() -> None:
    loads = OpenLoads()
    loads.openings.now_s = NOW_S
    for number in (1, 2):  # paused, or in quarantine; of one octave and endpoint with the others
        loads.replace_blocked(UUID(int=number), job(number, left_s=60.0))
    loads.replace(UUID(int=3), job(3, left_s=61.0, emitted=20, not_before_s=NOW_S + 61))
    record = snapshot(loads).record("intake-1", "pool")
    assert (record.next_deadline_s, record.buckets) == (0.0, [])
    assert [(one.items, one.deadline_s) for one in record.paused] == [(240, NOW_S + 60)]

    loads.replace(UUID(int=3), job(3, left_s=61.0, emitted=20, not_before_s=NOW_S + 50))
    record = snapshot(loads).record("intake-1", "pool")
    assert record.next_deadline_s == NOW_S + 61
    assert [(one.items, one.deadline_s) for one in record.paused] == [(240, NOW_S + 60)]


def test_the_epoch_is_the_highest_of_the_leases_of_the_pool() -> None:
    loads = with_jobs(job(1), job(2), job(3, pool="other"))
    loads.replace_blocked(UUID(int=4), job(4))
    epochs = {1: 3, 2: 7, 3: 9, 4: 8, 5: 99}
    loads.leases = {UUID(int=k): LeaseState(is_suspended=False, epoch=v) for k, v in epochs.items()}
    assert loads.epochs() == {"pool": 8, "other": 9}
    assert snapshot(loads).record("i", "pool").epoch == 8


def test_files_that_are_validated_count_for_a_pool_without_items() -> None:
    files = ValidatingFiles(3, 4096, NOW_S + 77)
    found = snapshot(OpenLoads(), new=files)
    assert found.pools == {"new"}
    record = found.record("i", "new")
    assert (record.validating, record.validating_bytes) == (3, 4096)
    assert (record.next_deadline_s, record.buckets) == (NOW_S + 77, [])


def test_the_farthest_octaves_are_merged_into_nearer_ones() -> None:
    work = [
        OctaveWork(k, f"/v1/{n}", False, BacklogWork(1, 2, 3, NOW_S + 2.0**k))
        for n in range(5)
        for k in range(1, 21)
    ]
    buckets = buckets_of(work)
    assert len(buckets) == 60 <= BACKLOG_BUCKETS_MAX
    assert sum(one.items for one in buckets) == 100
    last = [one for one in buckets if one.deadline_s == NOW_S + 2.0**12]
    assert [one.items for one in last] == [9] * 5  # of the octaves 12 to 20


def test_many_endpoints_of_one_octave_are_merged_into_the_largest() -> None:
    work = [OctaveWork(0, f"/v1/{n}", False, BacklogWork(n + 1, 0, 0, NOW_S)) for n in range(100)]
    buckets = buckets_of(work)
    assert len(buckets) == BACKLOG_BUCKETS_MAX
    assert sum(one.items for one in buckets) == 5050
    largest = max(buckets, key=lambda one: one.items)
    assert largest.endpoint == "/v1/99"


def test_a_pool_whose_work_ended_is_repeated_and_then_forgotten() -> None:
    published, sent_s = PublishedPools(), []
    assert published.due({"a", "b"}, 0.0) == ["a", "b"]
    for second in range(1, int(FORGET_S) + 100):
        due = published.due({"b"}, float(second))
        assert due[0] == "b"
        sent_s += [second] * (len(due) - 1)
    assert sent_s == list(range(1, int(FORGET_S) + 2, int(REPEAT_S)))
    assert published.due({"a", "b"}, 1000.0) == ["a", "b"]


def test_a_pool_that_has_work_again_is_not_repeated_as_ended() -> None:
    published = PublishedPools()
    published.due({"a"}, 0.0)
    assert published.due(set(), 1.0) == ["a"]
    assert published.due(set(), 2.0) == []
    assert published.due({"a"}, 3.0) == ["a"]
    assert published.due(set(), 4.0) == ["a"]
    assert published.due(set(), 4.0 + REPEAT_S) == ["a"]


def test_ended_pools_are_forgotten_beyond_a_limit() -> None:
    published = PublishedPools()
    published.due({f"pool-{n}" for n in range(3000)}, 0.0)
    assert len(published.due(set(), 1.0)) == 1000
    assert len(published.due(set(), 1.0 + REPEAT_S)) == 1000


def test_a_served_pool_is_repeated_with_and_without_work_and_named_once() -> None:
    published, sent_s = PublishedPools(), []
    for second in range(1000):
        pools = {"a"} if 100 <= second < 200 else set()
        due = published.due(pools, float(second), ["a", "b"])
        assert len(due) == len(set(due))
        sent_s += [second] if "a" in due else []
        assert ("b" in due) is (second % REPEAT_S == 0)
    idle = [*range(200, 1000, int(REPEAT_S))]
    assert sent_s == [0, 30, 60, 90, *range(100, 200), *idle]
    assert published.due(set(), 2000.0) == []  # it is served no more


def test_served_pools_without_work_are_bounded() -> None:
    served = [f"pool-{number:05}" for number in range(20_000)]
    published = PublishedPools()
    first = published.due({"other"}, 0.0, served)
    assert first == ["other", *served[:SERVED_POOLS_MAX]]
    assert published.due({"other"}, REPEAT_S, served) == first


@pytest.mark.parametrize("is_blocked", [False, True])
def test_a_job_without_items_left_leaves_nothing(is_blocked: bool) -> None:
    sums = BacklogSums()
    before = job(1)
    sums.replace(None, before, is_blocked=is_blocked)
    assert sums.places()
    after = before._replace(emitted=100, terminal=100)
    sums.replace(before, after, is_blocked=is_blocked)
    assert sums.places() == {}
    sums.replace(after, None, is_blocked=is_blocked)
    assert sums.places() == {}
