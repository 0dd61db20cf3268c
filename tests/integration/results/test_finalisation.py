"""Goal: concurrent finalisers write the two files of a job once and in item order."""

import hashlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.errors import LeaseLostError
from core.object_names import answer_prefix
from core.states import CloseReason, JobState
from jobs.leasing.leases import Lease, claim
from jobs.tables.files import files
from jobs.tables.jobs import job_leases, jobs
from results.finaliser import finalisation
from results.finaliser.finalisation import READY, finalise
from results.finaliser.item_rows import RowNotFoundError
from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import write_object
from storage.postgres.items import items
from tests.integration.results.outcomes import (
    add_running_job,
    close,
    count,
    event_count,
    execute,
    failed,
    fetch,
    job,
    keys,
    outcome,
    settle,
    write,
)
from topics.records.records import ItemOutcome


def always(_: object = None) -> None:
    """A lease check that always succeeds."""


def finalise_next(
    engine: sa.Engine, store: LocalObjectStore, *, check: Callable[[], None] = always
) -> JobState:
    return finalise(engine, store, acquire_lease(engine), check=check)


def acquire_lease(engine: sa.Engine, *, holder: str = "one", ttl_s: float = 60) -> Lease:
    with engine.begin() as connection:
        (lease,) = claim(
            connection, role="finaliser", holder=holder, ttl_s=ttl_s, limit=1, where=READY
        )
    return lease


def lines(engine: sa.Engine, store: LocalObjectStore, file_id: UUID) -> list[dict[str, Any]]:
    """Read a file as its row describes it, and check size and digest."""
    (row,) = fetch(engine, sa.select(files).where(files.c.id == file_id))
    content = b"".join(store.read(row.object_key))
    assert row.size_bytes == len(content)
    assert row.sha256 == hashlib.sha256(content).hexdigest()
    assert row.purpose == "batch_output"
    return [json.loads(line) for line in content.splitlines()]


def error_lines(engine: sa.Engine, store: LocalObjectStore, job_id: UUID) -> list[dict[str, Any]]:
    return lines(engine, store, job(engine, job_id)["error_file_id"])


def test_both_files_have_their_items_in_order(engine: sa.Engine, store: LocalObjectStore) -> None:
    job_id = settle(
        engine,
        outcome(3),
        failed(2),
        outcome(0, custom_id='a "quoted" ü'),
        failed(1, status_code=0, body=b"", error_code="too_slow", error_message="Too slow."),
        output_expires_after_s=3600,
    )

    assert finalise_next(engine, store) is JobState.COMPLETED

    ended = job(engine, job_id)
    assert ended["state"] == "completed"
    assert ended["completed_at"] is not None
    output = lines(engine, store, ended["output_file_id"])
    error = lines(engine, store, ended["error_file_id"])
    assert [line["custom_id"] for line in output] == ['a "quoted" ü', "request-3"]
    assert output[1]["response"] == {
        "status_code": 200,
        "request_id": f"req_{job_id.hex}00000003",
        "body": {"answer": 3},
    }
    assert [line["custom_id"] for line in error] == ["request-1", "request-2"]
    assert error[0]["error"] == {"code": "too_slow", "message": "Too slow."}
    assert error[1]["response"]["status_code"] == 400
    assert event_count(engine) == 2  # finalizing, completed
    rows = {row.id: row for row in fetch(engine, sa.select(files))}
    row = rows[ended["output_file_id"]]
    assert row.filename == f"batch_{job_id.hex}_output.jsonl"
    assert (row.expires_at - row.created_at).total_seconds() == 3600
    assert row.tenant_id == ended["tenant_id"]
    assert rows[ended["error_file_id"]].filename == f"batch_{job_id.hex}_error.jsonl"


def test_missing_large_answer_fails_only_its_line(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    job_id = settle(engine, outcome(0, body=b"", body_key="answers/gone/0"), outcome(1))

    finalise_next(engine, store)

    gone, kept = lines(engine, store, job(engine, job_id)["output_file_id"])
    assert (gone["response"], gone["error"]["code"]) == (None, "answer_gone")
    assert gone["custom_id"] == "request-0"
    assert kept["response"]["body"] == {"answer": 1}


@pytest.mark.parametrize("made", [failed, outcome])
def test_file_without_lines_is_not_stored(
    engine: sa.Engine, store: LocalObjectStore, made: Callable[[int], ItemOutcome]
) -> None:
    job_id = settle(engine, made(0))

    finalise_next(engine, store)

    ended = job(engine, job_id)
    files_of = [ended["output_file_id"], ended["error_file_id"]]
    filled, empty = files_of if made is outcome else reversed(files_of)
    assert empty is None
    assert len(lines(engine, store, filled)) == 1
    assert len(keys(store)) == 1


def closing_job(engine: sa.Engine, store: LocalObjectStore, content: bytes, **columns: Any) -> UUID:
    """A job whose close waits, with this input file."""
    write_object(store, "files/input", content)
    given: dict[str, Any] = {"state": "cancelling", "close_reason": "cancelled"}
    given |= {"input_key": "files/input", "input_bytes": len(content)}
    return add_running_job(engine, **({"total_count": 3} | given | columns))


@pytest.mark.parametrize(
    ("reason", "state", "ended_state", "code"),
    [
        (CloseReason.CANCELLED, "cancelling", JobState.CANCELLED, "batch_cancelled"),
        (CloseReason.EXPIRED, "in_progress", JobState.EXPIRED, "batch_expired"),
    ],
)
def test_custom_ids_of_unread_items_come_from_the_input(
    engine: sa.Engine,
    store: LocalObjectStore,
    reason: CloseReason,
    state: str,
    ended_state: JobState,
    code: str,
) -> None:
    content = b"\n".join(b'{"custom_id":"mine-%d","body":{}}' % n for n in range(7))
    closed = {"state": state, "close_reason": reason.value}
    job_id = closing_job(engine, store, content, total_count=7, **closed)
    write(engine, job_id, outcome(2), outcome(5))
    close(engine, job_id, reason)

    assert finalise_next(engine, store) is ended_state

    ended = job(engine, job_id)
    assert ended[f"{ended_state}_at"] is not None
    output = lines(engine, store, ended["output_file_id"])
    error = error_lines(engine, store, job_id)
    assert [line["custom_id"] for line in output] == ["request-2", "request-5"]
    assert [line["custom_id"] for line in error] == [f"mine-{n}" for n in (0, 1, 3, 4, 6)]
    assert {line["error"]["code"] for line in error} == {code}
    assert [line["response"] for line in error] == [None] * 5


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b'{"custom_id":null,"custom_id":"a"}\njunk\n{"custom_id":"c"}', ["a", "", "c"]),
        (b'{"custom_id":"a","body":{}}\n{"cust', ["a", "", ""]),
        (None, ["", "", ""]),
    ],
    ids=["an unreadable line", "cut short", "gone"],
)
def test_unreadable_input_does_not_block_its_job(
    engine: sa.Engine,
    store: LocalObjectStore,
    caplog: pytest.LogCaptureFixture,
    content: bytes | None,
    names: list[str],
) -> None:
    job_id = closing_job(engine, store, content or b"", input_bytes=100)
    if content is None:
        store.delete("files/input")
    close(engine, job_id, CloseReason.CANCELLED)

    assert finalise_next(engine, store) is JobState.CANCELLED

    error = error_lines(engine, store, job_id)
    assert [line["custom_id"] for line in error] == names
    assert {line["error"]["code"] for line in error} == {"batch_cancelled"}
    assert "lines of an input file are unreadable" in caplog.text


def test_body_in_an_object_is_written_inline(engine: sa.Engine, store: LocalObjectStore) -> None:
    write_object(store, "bodies/large", b'{\n"text": "' + b"x" * 3_000_000 + b'"}')
    job_id = settle(engine, outcome(0, body=b"", body_key="bodies/large"), outcome(1))

    finalise_next(engine, store)

    output = lines(engine, store, job(engine, job_id)["output_file_id"])
    assert len(output[0]["response"]["body"]["text"]) == 3_000_000
    assert output[1]["response"]["body"] == {"answer": 1}


def test_cancellation_while_files_are_written_ends_cancelled(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    job_id = settle(engine, outcome(0))
    cancelled = sa.update(jobs).values(state="cancelling", close_reason="cancelled")

    def cancel() -> None:
        execute(engine, cancelled)

    assert finalise_next(engine, store, check=cancel) is JobState.CANCELLED
    assert job(engine, job_id)["output_file_id"] is not None


def test_one_of_two_concurrent_finalisers_wins(engine: sa.Engine, store: LocalObjectStore) -> None:
    job_id = settle(engine, *map(outcome, range(50)), failed(50))
    first = acquire_lease(engine, holder="one", ttl_s=0)
    second = acquire_lease(engine, holder="two")
    barrier = threading.Barrier(2)

    def wait_for_rival() -> None:
        barrier.wait(40)

    def attempt(lease: Lease) -> str:
        try:
            return finalise(engine, store, lease, check=wait_for_rival)
        except LeaseLostError:
            return "lost"

    with ThreadPoolExecutor(2) as threads:
        ends = list(threads.map(attempt, [first, second]))

    assert ends == ["lost", JobState.COMPLETED]
    ended = job(engine, job_id)
    assert len(lines(engine, store, ended["output_file_id"])) == 50
    prefix = f"results/{job_id.hex}/{second.epoch}"
    # The loser may end last: then its own clean-up deletes its objects, not the winner.
    assert keys(store) == {f"{prefix}/error.jsonl", f"{prefix}/output.jsonl"}
    assert event_count(engine) == 2


def test_lost_lease_ends_finalising_at_the_next_page(
    engine: sa.Engine, store: LocalObjectStore
) -> None:
    job_id = settle(engine, outcome(0))

    def lost() -> None:
        raise LeaseLostError

    with pytest.raises(LeaseLostError):
        finalise_next(engine, store, check=lost)

    assert keys(store) == set()
    assert job(engine, job_id)["state"] == "finalizing"


def test_objects_of_a_crashed_attempt_are_deleted_by_the_next(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = settle(engine, outcome(0))

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(finalisation, "lock_lease", crash)
        with pytest.raises(KeyboardInterrupt):
            finalise(engine, store, acquire_lease(engine, ttl_s=0), check=always)
    assert len(keys(store)) == 1

    lease = acquire_lease(engine, holder="two")
    finalise(engine, store, lease, check=always)

    assert keys(store) == {f"results/{job_id.hex}/{lease.epoch}/output.jsonl"}


def test_store_error_after_the_commit_is_logged(
    engine: sa.Engine, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(engine, outcome(0))

    def unavailable(_: str) -> None:
        raise ObjectStoreUnavailableError

    monkeypatch.setattr(store, "list", unavailable)

    assert finalise_next(engine, store) is JobState.COMPLETED


def test_stop_leaves_large_answers_to_the_sweep(engine: sa.Engine, store: LocalObjectStore) -> None:
    job_id = settle(engine, outcome(0))
    write_object(store, f"{answer_prefix(job_id)}0", b"{}")
    looks = iter([None, LeaseLostError()])

    def check() -> None:
        if lost := next(looks):
            raise lost

    assert finalise_next(engine, store, check=check) is JobState.COMPLETED
    assert len(list(store.list(answer_prefix(job_id)))) == 1


def test_missing_row_is_an_error(engine: sa.Engine, store: LocalObjectStore) -> None:
    job_id = settle(engine, *map(outcome, range(3)))
    for gone in (2, 1):
        lost = items.delete().where(items.c.job_id == job_id, items.c.item_index == gone)
        execute(engine, lost)
        with pytest.raises(RowNotFoundError):
            finalise(engine, store, acquire_lease(engine, ttl_s=0), check=always)
    assert keys(store) == set()


def test_terminal_job_is_not_claimed(engine: sa.Engine, store: LocalObjectStore) -> None:
    settle(engine, outcome(0))
    finalise(engine, store, acquire_lease(engine, ttl_s=0), check=always)

    with engine.begin() as connection:
        assert not claim(connection, role="finaliser", holder="x", ttl_s=1, limit=9, where=READY)
    assert count(engine, job_leases) == 1
