"""Goal: a slow store delays only its own job, and no item is sent repeatedly."""

import pytest
import sqlalchemy as sa

from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.object_store import ObjectBlocks
from tests.integration.jobs.retries import RetryProcess

END_IDLE_TRANSACTIONS = sa.text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND state = 'idle in transaction'"
)


@pytest.fixture
def slow_store(retries: RetryProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read takes 15 s."""
    read = retries.objects.read

    def slow(key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        retries.clock.now_s += 15
        return read(key, offset=offset, length=length)

    monkeypatch.setattr(retries.objects, "read", slow)


@pytest.mark.usefixtures("slow_store")
def test_a_slow_store_ends_a_round_after_the_sent_items(retries: RetryProcess) -> None:
    for index in range(1, 5):
        retries.schedule(retries.add_job(), index)
    retries.run()
    first = retries.indexes()
    assert len(first) == 2
    assert sorted([*first, *(index for index, _ in retries.waiting())]) == [1, 2, 3, 4]
    retries.run()
    assert retries.indexes() == [1, 2, 3, 4]
    assert retries.waiting() == []


@pytest.mark.usefixtures("slow_store")
@pytest.mark.parametrize("offsets_are_known", [True, False])
def test_distant_lines_end_a_round_like_jobs(
    retries: RetryProcess, monkeypatch: pytest.MonkeyPatch, offsets_are_known: bool
) -> None:
    monkeypatch.setattr("jobs.input.line_reader._SPAN_BYTES", 1)
    retries.schedule(retries.add_job(), 10, 20, 30, 40)
    if not offsets_are_known:
        retries.forget_offsets(above=20)
    retries.run()
    assert retries.indexes() == [10, 20]
    assert retries.waiting() == [(30, 2), (40, 2)]
    retries.run()
    assert retries.indexes() == [10, 20, 30, 40]
    assert retries.waiting() == []


def test_a_throttled_job_is_read_after_the_others_and_later_each_time(
    retries: RetryProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [retries.add_job(input_key=f"bad-{number}") for number in range(2)]
    for job_id in bad:
        retries.schedule(job_id, 1)
    read, keys = retries.objects.read, []

    def throttled(key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        keys.append(key)
        if key.startswith("bad"):
            retries.clock.now_s += 15  # the client's own retries
            raise ObjectStoreUnavailableError
        return read(key, offset=offset, length=length)

    monkeypatch.setattr(retries.objects, "read", throttled)
    retries.run()
    assert sorted(keys) == ["bad-0", "bad-1"]
    retries.schedule(retries.add_job(), 5)
    retries.clock.now_s += 3600
    keys.clear()
    retries.run()
    assert keys[0] == "in"
    assert retries.indexes() == [5]
    assert [index for index, _ in retries.waiting()] == [1, 1]


def test_a_read_longer_than_the_transaction_is_not_a_database_outage(
    retries: RetryProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    retries.schedule(retries.add_job(), 5)
    read = retries.objects.read

    def frozen(key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        retries.clock.now_s += 61
        with retries.engine.begin() as connection:
            connection.execute(END_IDLE_TRANSACTIONS)
        return read(key, offset=offset, length=length)

    with monkeypatch.context() as patched:
        patched.setattr(retries.objects, "read", frozen)
        retries.run()
    assert retries.indexes() == []
    assert retries.waiting() == [(5, 2)]
    retries.run()
    assert retries.indexes() == []  # the job backs off
    retries.clock.now_s += 11
    retries.run()
    assert retries.indexes() == [5]
    assert retries.waiting() == []


@pytest.mark.usefixtures("slow_store")
def test_no_job_takes_the_time_of_every_round(retries: RetryProcess) -> None:
    low, high = sorted([retries.add_job(), retries.add_job()])
    retries.schedule(low, *range(1, 251))  # three reads
    retries.schedule(high, 299)
    retries.run()
    assert retries.indexes() == list(range(1, 201))
    retries.schedule(low, *range(1, 201), attempt=3)  # three more reads
    retries.run()
    assert 299 in retries.indexes()
