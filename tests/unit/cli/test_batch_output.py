"""Goal: events, items, audits and rebuilds are parsed and shown completely."""

import json
from collections.abc import Iterator
from itertools import pairwise

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.admin.recovery_commands import (
    as_json,
    attempt_limit_message,
    is_consistent,
    job_row,
    write_jobs,
)
from cli.api_client import connect
from cli.batch import item_commands
from cli.batch.item_commands import (
    ResultEvent,
    audit_rows,
    differences,
    follow_results,
    item_fields,
    item_row,
    parse_events,
)
from cli.output import OutputFormat
from core.ids import new_uuid
from core.states import JobKind
from results.rebuilding.comparison import Comparison
from results.rebuilding.rebuild import RebuildOutcome, RebuiltJob
from tests.unit.cli.scripted_server import Answer, serving
from topics.errors import KafkaUnavailableError

STREAM = (
    b": keep-alive\n\n"
    b'id: 1\ndata: {"custom_id":"a\xe2\x80\xa8b","sequence":1}\n\n'
    b': keep-alive\n\nid: 2\ndata: {"sequence":2}\n\n'
    b'event: batch.completed\nid: 3\ndata: {"status":"completed"}\n\n'
)
EVENTS = [
    ResultEvent("", 1, b'{"custom_id":"a\xe2\x80\xa8b","sequence":1}'),
    ResultEvent("", 2, b'{"sequence":2}'),
    ResultEvent("batch.completed", 3, b'{"status":"completed"}'),
]


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_parse_events_from_blocks_of_any_size(cuts: list[int]) -> None:
    offsets = [0, *sorted(cuts), len(STREAM)]
    blocks = [STREAM[a:b] for a, b in pairwise(offsets)]

    assert list(parse_events(blocks)) == EVENTS


@given(end=st.integers(0, len(STREAM) - 1))
def test_parse_events_drops_an_incomplete_event(end: int) -> None:
    found = list(parse_events([STREAM[:end]]))

    assert found == EVENTS[: len(found)]


ITEM = {
    "id": "batch_req_1",
    "index": 4,
    "custom_id": None,
    "status": "retrying",
    "attempts": 1,
    "worker": None,
    "status_code": None,
    "error": None,
    "usage": None,
    "finished_at": None,
    "stages": None,
    "failures": [{"attempt": 1, "status_code": 500, "code": "http_500", "failed_at": 0}],
}


def test_pending_item_has_empty_cells_and_an_ended_one_its_code() -> None:
    assert item_row(ITEM) == ("4", "", "retrying", "", "1", "", "", "")
    assert item_row({**ITEM, "waiting_reason": "backoff"})[3] == "backoff"
    fields = dict(item_fields(ITEM))
    assert fields["failed"] == "attempt 1: http_500, 1970-01-01T00:00:00+00:00"
    assert "custom id" not in fields
    assert "stages" not in fields

    ended = ITEM | {"custom_id": "a", "status": "failed", "finished_at": 0, "failures": []}
    ended |= {"usage": {"input_tokens": 3, "output_tokens": 0}}
    failed = ended | {"error": {"code": "batch_expired", "message": "…"}}
    assert item_row(failed)[1:6] == ("a", "failed", "", "1", "batch_expired")
    timed = dict(item_fields(failed | {"stages": {"gateway_s": 0.5, "batch_wait_s": 0.02}}))
    assert timed["stages"] == "gateway 0.5 s, batch_wait 0.02 s"
    assert dict(item_fields(failed))["tokens"] == "3 in, 0 out"
    assert item_row(ended | {"status_code": 200})[5] == "200"


COUNTS = {"succeeded": 1, "failed": 0, "cancelled": 0, "expired": 0, "ended": 1}
TOKENS = {"input_tokens": 3, "output_tokens": 5}
AUDIT = {
    "ok": True,
    "conservation": {"input": 1, "rows": COUNTS, "counters": COUNTS},
    "usage": {"rows": TOKENS, "counters": TOKENS, "ledger": TOKENS},
    "log": None,
    "differences": [],
}


@pytest.mark.parametrize(
    ("holds", "line"),
    [
        (True, "log: was not read in time, so its items were not compared"),
        (False, "log: begins after the job, so its items were not compared"),
    ],
)
def test_audit_has_a_row_for_each_book_and_a_line_for_each_difference(
    holds: bool, line: str
) -> None:
    log = {
        "is_whole": False,
        "holds_first_record": holds,
        "results": COUNTS,
        "usage": TOKENS,
        "differences": {"row_missing": {"count": 5, "items": ["a", "b", "c", "d"]}},
    }
    different = [{"what": "items.failed", "rows": 1, "counters": 2}]
    found = AUDIT | {"log": log, "differences": different}
    counts = ("1", "0", "0", "0", "1", "3", "5")
    assert audit_rows(AUDIT) == [
        ("rows", *counts),
        ("counters", *counts),
        ("ledger", "", "", "", "", "", "3", "5"),
        ("input", "", "", "", "", "1", "", ""),
    ]
    assert differences(AUDIT) == []

    assert differences(found) == [
        "items.failed: rows 1, counters 2",
        line,
        "row missing: 5, first a, b, c",
    ]
    assert audit_rows(found)[3][0] == "log"


@pytest.mark.parametrize("output_format", list(OutputFormat))
def test_rebuild_writes_the_jobs_before_a_failure(
    output_format: OutputFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    done = RebuiltJob(new_uuid(), JobKind.BATCH, RebuildOutcome.SWAPPED)
    verdicts: list[RebuildOutcome] = []

    def rebuilt() -> Iterator[RebuiltJob]:
        yield done
        assert output_format is OutputFormat.JSON or done.job_id.hex in capsys.readouterr().out
        raise KafkaUnavailableError

    with pytest.raises(KafkaUnavailableError):
        write_jobs(rebuilt(), output_format, verdicts)

    assert verdicts == [RebuildOutcome.SWAPPED]
    if output_format is OutputFormat.JSON:
        (shown,) = json.loads(capsys.readouterr().out)
        assert shown == {"job": f"batch_{done.job_id.hex}", "verdict": "swapped"}


def test_rebuild_shows_the_differences_of_a_job() -> None:
    job_id = new_uuid()
    refused = RebuiltJob(job_id, JobKind.REQUEST, RebuildOutcome.LOG_BEGINS_LATER)
    assert job_row(refused) == (f"job_{job_id.hex}", "log_begins_later", *[""] * 9)
    assert as_json(refused) == {"job": f"job_{job_id.hex}", "verdict": "log_begins_later"}

    found = Comparison("a", "b", 3, 0, 1, False, True, True, 10, 4, 5, 6, 7)
    differs = RebuiltJob(job_id, JobKind.BATCH, RebuildOutcome.DIFFERS, found)
    assert job_row(differs)[1:9] == ("differs", "3", "0", "1", "differs", "same", "same", "4")
    assert job_row(differs)[9:] == ("5", "same")
    shown = as_json(differs)
    assert (shown["digest_of_log"], shown["dead_letters_missing"]) == ("b", 4)
    assert (shown["executions_above_limit"], shown["failures_below_limit"]) == (6, 7)


@pytest.mark.parametrize(
    ("above", "below", "reason"),
    [
        (2, 0, "the log holds 2 executions above it"),
        (0, 1, "1 failures below it were final"),
        (2, 1, "the log holds 2 executions above it and 1 failures below it were final"),
    ],
)
def test_rebuild_explains_another_attempt_limit(above: int, below: int, reason: str) -> None:
    found = Comparison("a", "b", 0, 0, 1, False, True, True, 10, 0, 0, above, below)
    refused = RebuiltJob(new_uuid(), JobKind.BATCH, RebuildOutcome.OTHER_LIMIT, found)

    message = attempt_limit_message(refused, 1)

    assert message.startswith(f"batch_{refused.job_id.hex}: MILLRACE_WRITER_ATTEMPTS_MAX is 1, but")
    assert f" {reason}: " in message


@pytest.mark.parametrize(
    ("verdicts", "of_all", "of_one"),
    [
        ([RebuildOutcome.SAME, RebuildOutcome.SWAPPED, RebuildOutcome.GONE], True, True),
        ([RebuildOutcome.SAME, RebuildOutcome.NOT_ENDED], True, False),
        ([RebuildOutcome.DIFFERS], False, False),
        ([RebuildOutcome.OTHER_LIMIT], False, False),
        ([RebuildOutcome.LOG_INCOMPLETE], False, False),
    ],
)
def test_rebuild_all_ignores_running_jobs(
    verdicts: list[RebuildOutcome], of_all: bool, of_one: bool
) -> None:
    assert is_consistent(verdicts, all_jobs=True) is of_all
    assert is_consistent(verdicts, all_jobs=False) is of_one


FIRST = Answer(b'id: 1\ndata: {"sequence":1}\n\n', kind="text/event-stream")
REST = Answer(
    b'id: 2\ndata: {"sequence":2}\n\nevent: batch.completed\nid: 3\ndata: {}\n\n',
    kind="text/event-stream",
)
PATH = "GET /v1/batches/batch_1/results"


def refusal(status: int) -> Answer:
    return Answer({"error": {"message": "Not now.", "code": "slow_down"}}, status=status)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without a pause."""
    monkeypatch.setattr(item_commands, "_PAUSE_S", 0.0)
    monkeypatch.setattr("openai._base_client.BaseClient._calculate_retry_timeout", lambda *_: 0.0)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_transient_error_reconnects_after_the_last_event(status: int) -> None:
    with serving(FIRST, *[refusal(status)] * 4, REST) as server:
        found = list(follow_results(connect(server.url, "sk-1"), "batch_1", 0))

    assert [event.sequence for event in found] == [1, 2, 3]
    assert server.seen == [PATH] * 6
    assert [headers["last-event-id"] for headers in server.headers] == ["0", *["1"] * 5]


@pytest.mark.parametrize(
    ("status", "failure", "requests"),
    [(404, openai.NotFoundError, 2), (500, openai.InternalServerError, 3)],
)
def test_refusal_and_the_last_of_transient_errors_are_raised(
    monkeypatch: pytest.MonkeyPatch, status: int, failure: type[Exception], requests: int
) -> None:
    monkeypatch.setattr(item_commands, "_TRIES_MAX", 3)
    with serving(FIRST, refusal(status)) as server, pytest.raises(failure, match="Not now"):
        list(follow_results(connect(server.url, "sk-1"), "batch_1", 0))

    assert server.seen == [PATH] * requests


def test_no_content_ends_the_stream() -> None:
    with serving(Answer(b"", status=204, kind="")) as server:
        assert list(follow_results(connect(server.url, "sk-1"), "batch_1", 99)) == []

    assert server.seen == [PATH]
