"""Goal: a result stream survives server restarts and reports refusals."""

import openai
import pytest

from cli.api_client import connect
from cli.batch import item_commands
from cli.batch.item_commands import follow_results
from tests.unit.cli.scripted_server import Answer, serving

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


def test_refused_stream_raises() -> None:
    with serving(FIRST, refusal(404)) as server, pytest.raises(openai.NotFoundError):
        list(follow_results(connect(server.url, "sk-1"), "batch_1", 0))

    assert server.seen == [PATH] * 2


def test_last_error_is_raised_after_all_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_commands, "_TRIES_MAX", 3)
    with (
        serving(refusal(500)) as server,
        pytest.raises(openai.InternalServerError, match="Not now"),
    ):
        list(follow_results(connect(server.url, "sk-1"), "batch_1", 0))

    assert server.seen == [PATH] * 3


def test_no_content_ends_the_stream() -> None:
    with serving(Answer(b"", status=204, kind="")) as server:
        assert list(follow_results(connect(server.url, "sk-1"), "batch_1", 99)) == []

    assert server.seen == [PATH]
