"""Goal: calls are timed and counted correctly for any segmentation of the response."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from cli.load.load_client import (
    LoadMeasurement,
    LoadTarget,
    ServerUnavailableError,
    TimedCall,
    _repeat_calls,
    percentile,
    run_load,
)
from tests.support.scripted_http import HEAD, STREAM_HEAD, chunk, response, scripted_http
from tests.support.until import until_true


@asynccontextmanager
async def serving(*parts: bytes) -> AsyncIterator[LoadTarget]:
    async with scripted_http(*parts) as url:
        yield LoadTarget(f"{url}/v1", "sk-x", b"{}")


async def one_call(*parts: bytes) -> TimedCall:
    async with serving(*parts) as target:
        connection = await target.connect()
        try:
            async with asyncio.timeout(20):
                return await connection.send()
        finally:
            connection.close()


async def calls_until(
    target: LoadTarget,
    is_enough: Callable[[LoadMeasurement], bool],
    *,
    clients: int = 1,
    timeout_s: float = 20,
) -> LoadMeasurement:
    """Run clients until their results suffice, however slow this machine is."""
    result = LoadMeasurement()
    tasks = [
        asyncio.create_task(_repeat_calls(target, None, result, timeout_s)) for _ in range(clients)
    ]
    await until_true(lambda: is_enough(result))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return result


async def test_response_is_timed_to_its_first_and_last_byte() -> None:
    answer = response(b"200 OK", b"x" * 100)
    call = await one_call(answer[:60], answer[60:])
    assert call.error == ""
    assert 0 < call.first_wait_s <= call.latency_s


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_events_are_counted_in_blocks_of_any_size(size: int) -> None:
    events = b': ping\n\ndata: {"a":1}\n\ndata: {"b":2}\r\n\r\ndata: [DONE]\n\n'
    pieces = [chunk(events[at : at + size]) for at in range(0, len(events), size)]
    call = await one_call(STREAM_HEAD, *pieces, chunk(b""))
    assert (call.error, call.event_count, call.is_done, call.status) == ("", 2, True, 200)
    assert 0 < call.first_wait_s < call.latency_s


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([response(b"503 Unavailable", b'{"error":{"code":"no_capacity"}}')], "503 no_capacity"),
        ([response(b"500 Oops", b"<html>")], "500"),
        ([STREAM_HEAD, chunk(b'data: {"a":1}\n\n'), chunk(b"")], "broken stream"),
        (
            [STREAM_HEAD, chunk(b'data: {"error":{"code":"stream_interrupted"}}\n\n'), chunk(b"")],
            "in the stream: stream_interrupted",
        ),
        ([STREAM_HEAD, b""], "disconnected"),
        ([b"SSH-2.0\r\n"], "not HTTP"),
    ],
)
async def test_failed_call_has_an_error(parts: list[bytes], error: str) -> None:
    call = await one_call(*parts)
    assert (call.error, call.is_done) == (error, False)


async def test_clients_repeat_calls() -> None:
    async with serving(response(b"200 OK", b"{}")) as target:
        result = await calls_until(target, lambda result: len(result.latencies_s) > 3, clients=3)
    assert result.errors == {}
    assert len(result.latencies_s) == len(result.first_waits_s)


async def test_clients_stop_after_the_duration() -> None:
    async with serving(response(b"200 OK", b"{}")) as target, asyncio.timeout(20):
        result = await run_load(target, client_count=3, seconds=0.3, call_timeout_s=20)
    assert result.errors == {}
    assert result.seconds >= 0.3
    assert result.calls_per_s == len(result.latencies_s) / result.seconds


async def test_client_continues_after_a_call_timeout() -> None:
    async with serving(HEAD) as target:
        result = await calls_until(
            target, lambda result: result.errors["timeout"] >= 2, timeout_s=0.05
        )
    assert len(result.latencies_s) == 0


async def test_unreachable_server_fails_at_once() -> None:
    async with serving(b"") as target:
        pass
    with pytest.raises(ServerUnavailableError, match="Cannot reach"):
        await run_load(target, client_count=2, seconds=5, call_timeout_s=5)


def test_percentile_is_nearest_rank() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.95, 1.0)] == [1.0, 3.0, 5.0, 5.0]
