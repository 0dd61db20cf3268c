"""Goal: kill -9 of any role with open streams: every client receives exactly one end."""

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from api.online.await_reply.replica_liveness import LOST_S
from cli.stack.processes.ports import accepts_connections
from cli.stack.processes.role_children import MEMBERS_FOLDER
from tests.e2e.observed_streams import ENDPOINT, StreamSeen, count_ends, run_streams, running_calls
from tests.support.stacks import STOP_S_MAX, Stack, running_stack
from tests.support.streaming_upstream import StreamingUpstream, streaming_upstream
from tests.support.until import STEP_S_MAX, until, until_found, until_true
from topics.records.access import gpu_group

MODEL = "small"
STREAMS = 64
TOKENS = 40
TOKEN_S = 0.1
DEADLINE_MS = 40_000
RECOVERY_S_MAX = 30.0
"""Distinguishes a recovery from a hang.

The promise is seconds on an idle machine; the tests record their measurements.
"""

BROKER_START_S_MAX = 90.0
UNARY_S_MAX = 150.0


@pytest.fixture(scope="module")
def upstream() -> Iterator[StreamingUpstream]:
    with streaming_upstream(TOKEN_S) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def stack(upstream: StreamingUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose streams take four seconds, with an upstream that records executions."""
    options = ("--engine", "openai_http", "--upstream", upstream.url, "--model", MODEL)
    folder = tmp_path_factory.mktemp("streams")
    with running_stack(folder, *options, "--concurrency", "128", model=MODEL) as running:
        yield running


def call(stack: Stack, timeout_ms: int, text: str = "x", max_tokens: int = 1) -> httpx.Response:
    messages = [{"role": "user", "content": text}]
    body = {"model": stack.model, "messages": messages, "max_tokens": max_tokens}
    headers = {"x-request-timeout-ms": str(timeout_ms)}
    return stack.request("POST", ENDPOINT, json=body, headers=headers)


async def unary_statuses(stack: Stack, upstream: StreamingUpstream, names: list[str]) -> list[int]:
    """Return the statuses of unary calls that would run for minutes, 0 for those that run again.

    Ends once each has an answer or a second execution. Each begins after the one before it has, so
    that they are not one batch: a batch has one partition.
    """
    url, headers = stack.url + ENDPOINT, {"authorization": f"Bearer {stack.key}"}
    headers["x-request-timeout-ms"] = "150000"
    async with httpx.AsyncClient(timeout=150, headers=headers) as client:
        calls = []
        for name in names:
            messages = [{"role": "user", "content": name}]
            body = {"model": stack.model, "messages": messages, "max_tokens": 2000}
            calls.append(asyncio.create_task(client.post(url, json=body)))
            await until_true(lambda name=name: upstream.executions(name))  # type: ignore[misc]

        def is_over(call: asyncio.Task[httpx.Response], name: str) -> bool:
            return call.done() or len(upstream.executions(name)) > 1

        await until_true(lambda: all(map(is_over, calls, names)), timeout_s=UNARY_S_MAX)
        statuses = [call.result().status_code if call.done() else 0 for call in calls]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    return statuses


def answers(stack: Stack) -> bool:
    try:
        return call(stack, 3000).status_code == 200
    except httpx.TransportError:
        return False


def texts(name: str) -> list[str]:
    """The texts of all streams, by which the upstream identifies executions."""
    return [f"{name} stream {number}" for number in range(STREAMS)]


def check(stack: Stack, upstream: StreamingUpstream, role: str) -> list[StreamSeen]:
    """Kill `role` with open streams; all of them end, and so does their work."""
    seen = run_streams(
        stack,
        texts(role),
        max_tokens=TOKENS,
        timeout_ms=DEADLINE_MS,
        disturb=lambda: stack.kill(role),
    )
    assert count_ends(seen)["hung"] == 0, count_ends(seen)
    until(lambda: answers(stack), "calls again", RECOVERY_S_MAX)
    until(lambda: running_calls(stack) == 0, "no call left running", RECOVERY_S_MAX)
    assert_ran_once(seen, upstream)
    return seen


def assert_ran_once(seen: list[StreamSeen], upstream: StreamingUpstream) -> None:
    """Shown chunks are complete and in order, and no shown execution ran again.

    Every stream had a chunk before the kill, so none may start a second time. This is called once
    calls succeed again and none is left, so all redelivered records have been decided on.
    """
    for one in seen:
        assert one.pieces == [str(number) for number in range(len(one.pieces))], one
        assert one.pieces, one
        assert len(one.pieces) == TOKENS or not one.done, one
        assert upstream.executions(one.text) == [*one.executions], one


@pytest.mark.timeout(400)
def test_a_killed_batcher_interrupts_no_stream(stack: Stack, upstream: StreamingUpstream) -> None:
    assert count_ends(check(stack, upstream, "batcher-interactive")) == {"done": STREAMS}


@pytest.mark.timeout(400)
def test_a_killed_replica_interrupts_its_streams(stack: Stack, upstream: StreamingUpstream) -> None:
    seen = check(stack, upstream, "gpu-consumer")
    assert {one.error for one in seen if one.error} <= {"stream_interrupted"}


@pytest.mark.timeout(400)
def test_a_killed_replica_has_its_unary_calls_answered_by_the_next(
    stack: Stack, upstream: StreamingUpstream
) -> None:
    """Nothing of them was shown, so they run again, and their clients notice nothing."""
    calls = [text.replace("stream", "unary") for text in texts("next replica")]
    with ThreadPoolExecutor(STREAMS) as pool:
        # All of them still run when the last has started.
        answers = [pool.submit(call, stack, DEADLINE_MS, text, 2 * TOKENS) for text in calls]
        until(lambda: all(map(upstream.executions, calls)), "all of them to run", STEP_S_MAX)
        stack.kill("gpu-consumer")
        statuses = [answer.result().status_code for answer in answers]

    assert set(statuses) == {200}, statuses
    assert {len(upstream.executions(text)) for text in calls} == {2}


@contextmanager
def second_replica(stack: Stack, folder: Path) -> Iterator[None]:
    """Start a replica beside that of the stack, and wait until both read partitions."""
    first = psutil.Process(until_found(lambda: stack.pid("gpu-consumer")))
    env = first.environ() | {MEMBERS_FOLDER: str(folder), "MILLRACE_GPU_METRICS_PORT": "0"}
    second = subprocess.Popen(first.cmdline(), env=env)
    group = gpu_group(env["MILLRACE_GPU_POOL"], "interactive")
    admin = AdminClient(stack.kafka.client_options())

    def shares_partitions() -> bool:
        try:
            described = admin.describe_consumer_groups([group])[group].result(20)
        except KafkaException:
            return False  # it rebalances
        parts = [len(member.assignment.topic_partitions) for member in described.members]
        return len(parts) == 2 and min(parts) > 0

    try:
        until(shares_partitions, "both replicas to read partitions", 2 * RECOVERY_S_MAX)
        yield
    finally:
        second.terminate()
        try:
            second.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:  # it must not disturb the tests that follow
            second.kill()
            second.wait()
            raise


@pytest.mark.timeout(400)
def test_calls_that_ran_on_as_their_partition_moved_end_with_their_replica(
    stack: Stack,
    upstream: StreamingUpstream,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """The offsets of such calls are committed, so no other replica asks for them.

    A unary call of such a partition ends as a stream does. One whose partition stayed where it was
    runs again.
    """
    killed_s = 0.0
    unary = [text.replace("stream", "unary") for text in texts("moved")[:8]]
    statuses: list[Future[list[int]]] = []

    def move_and_kill() -> None:
        nonlocal killed_s
        statuses.append(pool.submit(asyncio.run, unary_statuses(stack, upstream, unary)))
        until(lambda: all(map(upstream.executions, unary)), "the unary calls to run", STEP_S_MAX)
        closing.enter_context(second_replica(stack, tmp_path))
        stack.kill("gpu-consumer")
        killed_s = time.monotonic()

    with ExitStack() as closing:
        pool = closing.enter_context(ThreadPoolExecutor(1))
        seen = run_streams(
            stack, texts("moved"), max_tokens=2000, timeout_ms=150_000, disturb=move_and_kill
        )
        ended_s = time.monotonic() - killed_s
        record_property("ended_s", round(ended_s, 2))
        assert {one.error for one in seen} == {"stream_interrupted"}
        assert LOST_S - 2 < ended_s < LOST_S + RECOVERY_S_MAX  # it reported last before the kill
        assert all(len(upstream.executions(one.text)) == 1 for one in seen)
        ends = [
            (status, len(upstream.executions(text)))
            for status, text in zip(statuses[0].result(), unary, strict=True)
        ]
        assert set(ends) <= {(502, 1), (0, 2)}, ends
        assert (502, 1) in ends


@pytest.mark.timeout(400)
def test_a_killed_api_closes_its_connections_and_frees_their_work(
    stack: Stack, upstream: StreamingUpstream, record_property: Callable[[str, object], None]
) -> None:
    """Their ends and deadlines are far off: only the caller's missing heartbeat frees them."""
    started_s = 0.0

    def kill() -> None:
        nonlocal started_s
        until(lambda: running_calls(stack) == STREAMS, "all calls to run", STEP_S_MAX)
        started_s = time.monotonic()
        stack.kill("api")

    timeout_ms = 4 * DEADLINE_MS
    seen = run_streams(stack, texts("api"), max_tokens=2000, timeout_ms=timeout_ms, disturb=kill)
    assert count_ends(seen) == {"error": STREAMS}
    until(lambda: running_calls(stack) == 0, "no call left running", RECOVERY_S_MAX)
    record_property("freed_s", round(time.monotonic() - started_s, 2))
    until(lambda: answers(stack), "calls again", RECOVERY_S_MAX)
    assert_ran_once(seen, upstream)


@pytest.mark.timeout(400)
def test_a_restarting_broker_ends_no_role_and_hangs_no_stream(
    stack: Stack, upstream: StreamingUpstream, record_property: Callable[[str, object], None]
) -> None:
    roles = {one.pid for one in stack.processes()} - {broker(stack).pid}
    port = int(stack.state.kafka_bootstrap_servers.rpartition(":")[2])

    def restart() -> None:
        broker(stack).send_signal(signal.SIGTERM)
        until(lambda: not accepts_connections(port), "the broker to stop", 30.0)
        until(lambda: accepts_connections(port), "the broker to start", BROKER_START_S_MAX)
        started_s = time.monotonic()
        until(lambda: answers(stack), "calls again", RECOVERY_S_MAX)
        record_property("first_good_answer_s", round(time.monotonic() - started_s, 2))

    seen = run_streams(
        stack,
        texts("broker"),
        max_tokens=TOKENS,
        timeout_ms=int(BROKER_START_S_MAX * 1000) + DEADLINE_MS,
        disturb=restart,
    )

    assert roles <= {one.pid for one in stack.processes()}, "a role died during the restart"
    assert count_ends(seen)["hung"] == 0, count_ends(seen)
    assert {one.error for one in seen if one.error} <= {"stream_interrupted", "log_unavailable"}
    until(lambda: running_calls(stack) == 0, "no call left running", RECOVERY_S_MAX)
    assert_ran_once(seen, upstream)


def broker(stack: Stack) -> psutil.Process:
    (found,) = [one for one in stack.processes() if "kafka.Kafka" in one.cmdline()]
    return found
