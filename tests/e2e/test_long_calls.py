"""Goal: commands show, interrupt and cancel calls that last; a call ends with its client.

A command prints the answer on stdout, messages on stderr, and has an exit code. A client that
disconnects frees its slot at once and leaks nothing. The stack of these tests is the second one of
its machine: the last test kills it.
"""

import json
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import psutil
import pytest
import sqlalchemy as sa
from openai import NotFoundError
from typer.testing import CliRunner, Result

from cli.exits import ExitCode
from cli.main import app
from cli.stack.processes.supervisor import STOP_S_MAX
from core.outcomes import Outcome
from results.tables import billed_calls
from tests.e2e.observed_streams import ENDPOINT, replica_metric, running_calls
from tests.e2e.test_cli_batch import COMMAND_S_MAX, shell
from tests.support.job_checks import assert_conserved, ended, submit, watch
from tests.support.stacks import Stack, running_stack
from tests.support.until import STEP_S_MAX, until

pytestmark = pytest.mark.timeout(400)

TOKENS_MAX = 4096
"""A call of so many tokens lasts 80 s."""

FREED_S_MAX = 30.0
"""Below the duration of these calls. It is no measure of the latency, which the test records."""

OPTIONS = ("--simulated-latency-ms", "1000", "--simulated-token-ms", "20")
ROUNDS = 3
HANGS = "never"
FAULTS = [{"contains": HANGS, "fault": "hang"}]
DISCONNECTS = 2000
GROWTH_BYTES_MAX = 24 * 1024 * 1024


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose calls last: a second to the first token and 20 ms for each; or hang."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_ENGINE_SIMULATED_FAULTS", json.dumps(FAULTS))
        with running_stack(tmp_path_factory.mktemp("long"), *OPTIONS) as running:
            yield running


def millrace(env: dict[str, str], *arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), env=env, input=stdin)


def in_background(stack: Stack, max_tokens: int = 4) -> str:
    """Start a background call and return the job's id."""
    with stack.client as client:
        answer = client.chat.completions.with_raw_response.create(
            model=stack.model,
            messages=[{"role": "user", "content": "Hello."}],
            max_tokens=max_tokens,
            extra_body={"background": True},
        )
        assert answer.http_response.status_code == 202
        return str(json.loads(answer.text)["id"])


def test_only_the_answer_is_on_stdout(stack: Stack, env: dict[str, str]) -> None:
    done = millrace(env, "chat", "--prompt", "Hello.", "--max-tokens", "6")

    assert done.exit_code == ExitCode.OK
    assert done.stdout.startswith("Simulated")
    assert done.stdout.endswith("\n")
    assert "6 tokens in" in done.stderr
    quiet = millrace(env, "chat", "-q", "--model", stack.model, stdin="Hello.")
    assert quiet.stdout.startswith("Simulated")
    assert quiet.stderr == ""


def test_an_interrupted_answer_ends_at_once(stack: Stack, env: dict[str, str]) -> None:
    arguments = ["--prompt", "Hello.", "--model", stack.model, "--max-tokens", "5000"]
    with shell(env, "chat", *arguments) as process:
        assert process.stdout is not None
        assert process.stdout.read(9) == b"Simulated"
        started_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=COMMAND_S_MAX)
    assert process.returncode == ExitCode.INTERRUPTED
    assert time.monotonic() - started_s < 10


@pytest.mark.parametrize("form", ["--unary", "--stream"])
def test_bench_online_measures_calls_and_latencies(env: dict[str, str], form: str) -> None:
    arguments = ["bench-online", form, "--clients", "3", "--seconds", "3", "-o", "json"]
    done = millrace(env, *arguments)

    assert done.exit_code == ExitCode.OK, done.stderr
    found = json.loads(done.stdout)
    assert found["calls"] >= 3
    assert found["errors"] == {}
    assert 1000 <= found["latency_ms"]["p50"] <= found["latency_ms"]["p99"]
    assert (form == "--stream") == ("first_piece_ms" in found)


def test_bench_online_fails_without_a_success(env: dict[str, str]) -> None:
    done = millrace(env, "bench-online", "--model", "unknown", "--seconds", "1", "-o", "json")

    assert done.exit_code == ExitCode.FAILED
    assert list(json.loads(done.stdout)["errors"]) == ["404 model_not_found"]
    unreachable = millrace(env, "bench-online", "--model", "m", "--url", "http://127.0.0.1:1")
    assert unreachable.exit_code == ExitCode.FAILED
    assert "Cannot reach http://127.0.0.1:1" in unreachable.stderr


def test_background_calls_are_shown_and_cancelled(stack: Stack, env: dict[str, str]) -> None:
    job, long = in_background(stack), in_background(stack, max_tokens=5000)
    cancelled = millrace(env, "jobs", "cancel", long)
    assert cancelled.exit_code == ExitCode.OK
    assert "cancel" in cancelled.stdout
    for one, status in ((job, "completed"), (long, "cancelled")):
        shown = partial(millrace, env, "jobs", "show", one, "-o", "json")
        until(lambda: json.loads(shown().stdout)["status"] == status)  # noqa: B023
    assert "HTTP 200" in millrace(env, "jobs", "show", job).stdout
    assert millrace(env, "jobs", "cancel", job).exit_code != ExitCode.OK
    assert millrace(env, "jobs", "show", "job_none").exit_code == ExitCode.NOT_FOUND


def test_keys_are_listed_without_their_secrets(stack: Stack) -> None:
    data = ["--data", str(stack.data)]
    (listed,) = json.loads(millrace({}, "keys", "list", *data, "-o", "json").stdout)

    assert listed["tenant"] == "default"
    assert stack.key.endswith(listed["hint"])
    table = millrace({}, "keys", "list", *data).stdout
    assert listed["id"] in table
    assert stack.key not in table


def aborted(stack: Stack) -> float:
    return replica_metric(stack, 'millrace_calls_aborted_total{reason="caller"}')


def call(stack: Stack, *, stream: bool, text: str = "x") -> socket.socket:
    """Send a long call and return its connection."""
    body = json.dumps(
        {
            "model": stack.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": TOKENS_MAX,
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


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnected_client_frees_its_slot(
    stack: Stack, stream: bool, record_property: Callable[[str, object], None]
) -> None:
    freed_s = []
    for _ in range(ROUNDS):
        until(lambda: running_calls(stack) == 0, "a free replica", STEP_S_MAX)
        before = aborted(stack)
        connection = call(stack, stream=stream, text="x" if stream else HANGS)
        if stream:
            connection.recv(65536)
        else:
            until(lambda: running_calls(stack) == 1, "its start", STEP_S_MAX)
        started_s = time.monotonic()
        connection.close()
        until(
            lambda: aborted(stack) == before + 1,  # noqa: B023
            "the slot",
            FREED_S_MAX,
        )
        freed_s.append(round(time.monotonic() - started_s, 3))

    record_property("freed_s", freed_s)


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

    until(lambda: billed() is not None, "its bill", STEP_S_MAX)
    row = billed()
    engine.dispose()
    assert row is not None
    tokens = received.count(b'"content":') - 1
    assert (row.outcome, row.input_tokens > 0) == (Outcome.CANCELLED.value, True)
    assert tokens <= row.output_tokens <= tokens + 250  # sent while it disconnected


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
    until(lambda: open_calls(stack) == 0, "no call left", STEP_S_MAX)
    assert len(api.net_connections()) < 100
    grown: int = api.memory_info().rss - before
    return grown


def open_calls(stack: Stack) -> float:
    port = stack.state.metrics_ports["api"]
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30, verify=False).text
    (line,) = [line for line in text.splitlines() if line.startswith("millrace_online_calls_open ")]
    return float(line.split()[1])


def test_a_second_stack_is_independent_survives_sigkill_and_stops_quickly(
    stack: Stack, shared_stack: Stack
) -> None:
    """The last test of this file, because it kills the stack of the others."""
    count = 300  # five times the items that run at once
    assert stack.url != shared_stack.url
    job = submit(stack.client, stack.model, count)
    with pytest.raises(NotFoundError):
        shared_stack.client.batches.retrieve(job.id)
    watch(stack.client, job.id, lambda j: bool(j.request_counts and j.request_counts.completed))
    stack.kill_everything()
    with running_stack(stack.data, *OPTIONS) as restarted:
        assert restarted.key == stack.key
        done = watch(restarted.client, job.id, ended)
        assert done.status == "completed"
        assert_conserved(restarted.client, done, count)
        assert restarted.stop() < STOP_S_MAX + 5
