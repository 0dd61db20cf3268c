"""Goal: a disconnected client frees its slot at once, and leaks nothing."""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import psutil
import pytest
import sqlalchemy as sa

from core.outcomes import Outcome
from results.tables import billed_calls
from tests.e2e.observed_streams import ENDPOINT, replica_metric
from tests.support.stacks import Stack, await_true, running_stack

FREED_S_MAX = 30.0
"""Far below the duration of these calls, which is minutes. It is no measure of the latency, which
the test records.
"""

ROUNDS = 3
HANGS = "never"
FAULTS = [{"contains": HANGS, "fault": "hang"}]
DISCONNECTS = 2000
GROWTH_BYTES_MAX = 24 * 1024 * 1024


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose calls last: seconds to the first chunk, then minutes; or hang."""
    options = ("--simulated-latency-ms", "3000", "--simulated-token-ms", "100")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_ENGINE_SIMULATED_FAULTS", json.dumps(FAULTS))
        with running_stack(tmp_path_factory.mktemp("disconnects"), *options) as running:
            yield running


def aborted(stack: Stack) -> float:
    return replica_metric(stack, 'millrace_calls_aborted_total{reason="caller"}')


def call(stack: Stack, *, stream: bool, text: str = "x") -> socket.socket:
    """Send a long call and return its connection."""
    body = json.dumps(
        {
            "model": stack.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 2000,
            "stream": stream,
        }
    )
    address = urlsplit(stack.url)
    connection = socket.create_connection((address.hostname or "", address.port or 80), 20)
    lines = [
        f"POST {ENDPOINT} HTTP/1.1",
        "Host: test",
        f"Authorization: Bearer {stack.key}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    connection.sendall("\r\n".join([*lines, "", body]).encode())
    return connection


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnected_client_frees_its_slot(
    stack: Stack, stream: bool, record_property: Callable[[str, object], None]
) -> None:
    freed_s = []
    for _ in range(ROUNDS):
        await_true(lambda: replica_metric(stack, "millrace_calls_running") == 0, "a free replica")
        before = aborted(stack)
        connection = call(stack, stream=stream, text="x" if stream else HANGS)
        if stream:
            connection.recv(65536)
        else:
            await_true(lambda: replica_metric(stack, "millrace_calls_running") == 1, "its start")
        started_s = time.monotonic()
        connection.close()
        await_true(
            lambda: aborted(stack) == before + 1,  # noqa: B023
            "the slot",
            FREED_S_MAX,
        )
        freed_s.append(round(time.monotonic() - started_s, 3))

    record_property("freed_s", freed_s)


@pytest.mark.timeout(300)
def test_an_abandoned_stream_is_billed_for_sent_tokens(stack: Stack) -> None:
    connection = call(stack, stream=True)
    received = b""
    while received.count(b'"content":') < 4:  # the first chunk is empty
        received += connection.recv(65536)
    connection.close()
    (name,) = re.findall(rb"x-request-id: req_([0-9a-f]{32})", received)
    query = sa.select(billed_calls).where(billed_calls.c.request_id == UUID(name.decode()))
    engine = sa.create_engine(stack.state.database_url)

    def billed() -> sa.Row[Any] | None:
        with engine.connect() as database:
            return database.execute(query).one_or_none()

    await_true(lambda: billed() is not None, "its bill")
    row = billed()
    engine.dispose()
    assert row is not None
    tokens = received.count(b'"content":') - 1
    assert (row.outcome, row.input_tokens > 0) == (Outcome.CANCELLED.value, True)
    assert tokens <= row.output_tokens <= tokens + 50  # sent while it disconnected


@pytest.mark.timeout(400)
def test_thousands_of_disconnects_leak_no_memory(stack: Stack) -> None:
    assert growth_bytes(stack, DISCONNECTS) < GROWTH_BYTES_MAX


def growth_bytes(stack: Stack, count: int) -> int:
    """Let `count` clients call and disconnect at once; return the growth of the API's memory."""
    pid = stack.pid("api")
    assert pid is not None
    api = psutil.Process(pid)
    for number in range(300):
        call(stack, stream=bool(number % 2)).close()
    before: int = api.memory_info().rss
    for number in range(count):
        call(stack, stream=bool(number % 2)).close()
    await_true(lambda: open_calls(stack) == 0, "no call left")
    assert len(api.net_connections()) < 100
    grown: int = api.memory_info().rss - before
    return grown


def open_calls(stack: Stack) -> float:
    text = httpx.get(f"{stack.url}/metrics", timeout=30).text
    (line,) = [line for line in text.splitlines() if line.startswith("millrace_online_calls_open ")]
    return float(line.split()[1])
