"""Goal: whatever arrives and in whatever order, a stream is whole pieces in order and one end."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Send

from api.online.answer.event_stream import DONE, KEEP_ALIVE, EventStreamResponse
from api.online.await_reply.open_calls import OpenCall, OpenCalls
from api.online.call_errors import deadline_exceeded, stream_interrupted
from api.online.calls import Timings
from api.online.exchange import Recording
from core.clock import SystemClock
from core.ids import new_uuid
from tests.support.online_calls import call_job, new_exchange
from topics.records.records import Reply, ReplyEnd

EXECUTION, OTHER = new_uuid(), new_uuid()
ENVELOPE = b'{"error":{"message":"m","type":"t","param":null,"code":"engine"}}'

steps = st.lists(
    st.sampled_from(
        [
            *("piece", "pieces", "other", "keep_alive", "good", "bad", "large", "gone"),
            *("deadline", "lost", "turn"),
        ]
    ),
    max_size=12,
)


@dataclass
class Client:
    """What went out, and whether writing waits a turn of the loop."""

    lingers: bool
    status: int | None = None
    body: bytes = b""
    ended: bool = False
    unused: list[str] = field(default_factory=list)

    async def send(self, message: Message) -> None:
        if self.lingers:
            await asyncio.sleep(0)
        assert not self.ended
        if message["type"] == "http.response.start":
            assert self.status is None
            self.status = message["status"]
        else:
            self.body += message["body"]
            self.ended = not message.get("more_body", False)


async def whole_body(_: OpenCall, end: ReplyEnd) -> bytes:
    """Fetch what fits no record, as far as it is still there."""
    if end.body_key is None:
        return end.body
    await asyncio.sleep(0)
    if end.body_key == "gone":
        raise stream_interrupted()
    return ENVELOPE


def open_call() -> OpenCall:
    return OpenCall(call_job(stream=True), now_s=0.0)


def reply(call: OpenCall, *pieces: bytes, end: ReplyEnd | None = None) -> Reply:
    return Reply(call.job.job_id, EXECUTION, list(pieces), end)


@dataclass
class Connection:
    """What became of it."""

    is_write_paused: bool = False
    is_dropped: bool = False
    last: bytes | None = None

    def abort(self) -> None:
        self.is_dropped = True

    def write_last_and_close(self, last: bytes) -> None:
        self.last = last


def answering(
    call: OpenCall,
    send: Send,
    *,
    connection: Connection | None = None,
    recording: Recording | None = None,
) -> asyncio.Task[None]:
    exchange = new_exchange(send, connection=connection or Connection(), recording=recording)
    answer = EventStreamResponse(exchange, [], Timings(0.0), SystemClock(), whole_body)
    return asyncio.create_task(answer.run(call))


async def play(names: list[str], lingers: bool) -> tuple[Client, list[bytes]]:
    client, call = Client(lingers), open_call()
    said: list[bytes] = []
    running = answering(call, client.send)

    def say(count: int) -> list[bytes]:
        new = [b"%d" % (len(said) + number) for number in range(count)]
        if not call.has_ended:
            said.extend(new)
        return new

    for name in [*names, "good"]:
        match name:
            case "piece":
                call.receive_reply(reply(call, *say(1)), replica_id="r", now_s=1.0)
            case "pieces":
                call.receive_reply(reply(call, *say(3)), replica_id="r", now_s=1.0)
            case "other" if call.execution_id is not None:
                call.receive_reply(
                    Reply(call.job.job_id, OTHER, [b"x"], ReplyEnd(200, b"")),
                    replica_id="r",
                    now_s=1.0,
                )
            case "keep_alive":
                call.keep_alive_due = True
                call.wake()
            case "good":
                call.receive_reply(reply(call, end=ReplyEnd(200, b"")), replica_id="r", now_s=1.0)
            case "bad":
                call.receive_reply(
                    reply(call, end=ReplyEnd(502, ENVELOPE)), replica_id="r", now_s=1.0
                )
            case "large" | "gone":
                call.receive_reply(
                    reply(call, end=ReplyEnd(502, b"", body_key=name)), replica_id="r", now_s=1.0
                )
            case "deadline":
                call.fail(deadline_exceeded())
            case "lost":
                call.fail(stream_interrupted())
            case _:
                await asyncio.sleep(0)
    await asyncio.wait_for(running, 20)
    return client, said


@given(names=steps, lingers=st.booleans())
def test_pieces_in_order_and_one_end(names: list[str], lingers: bool) -> None:
    client, said = asyncio.run(play(names, lingers))

    assert client.ended
    if client.status != 200:
        assert said == []
        assert client.status in {502, 504}
        assert client.body.startswith(b'{"error"')
        return
    events = client.body.replace(KEEP_ALIVE, b"")
    whole = b"".join(b"data: %s\n\n" % piece for piece in said)
    assert events.startswith(whole)
    end = events.removeprefix(whole)
    assert end == DONE or (end.startswith(b'data: {"error"') and end.count(b"data: ") == 1)


async def test_a_stop_while_the_end_waits_for_its_reader_is_told() -> None:
    client, call = Client(lingers=False), open_call()
    is_waiting, may_write = asyncio.Event(), asyncio.Event()

    async def send(message: Message) -> None:
        if b"[DONE]" in message.get("body", b""):
            is_waiting.set()
            await may_write.wait()
        await client.send(message)

    running = answering(call, send)
    call.receive_reply(reply(call, b"{}", end=ReplyEnd(200, b"")), replica_id="r", now_s=1.0)
    await asyncio.wait_for(is_waiting.wait(), 20)
    running.cancel()
    await asyncio.wait_for(running, 20)

    assert client.ended
    assert b'"code":"stream_interrupted"' in client.body


@pytest.mark.parametrize("how", ["bytes", "time"])
@pytest.mark.parametrize("held_up", ["http.response.start", "http.response.body"])
async def test_a_stream_that_its_reader_holds_up_is_cut(how: str, held_up: str) -> None:
    """Also where it is the answer before this one that is not read, and so not even the head."""
    client, call, connection = Client(lingers=False), open_call(), Connection()
    calls, is_waiting = OpenCalls(buffer_bytes_max=100), asyncio.Event()
    calls.add(call)

    async def send(message: Message) -> None:
        if message["type"] == held_up:
            is_waiting.set()
            await asyncio.Event().wait()
        await client.send(message)

    running = answering(call, send, connection=connection)
    calls.receive_replies([reply(call, b"{}")], replica_id="r", now_s=1.0)
    await asyncio.wait_for(is_waiting.wait(), 20)
    if how == "bytes":
        calls.receive_replies([reply(call, b"x" * 101)], replica_id="r", now_s=1.0)
    else:
        late_s = SystemClock().monotonic_s() + 31
        calls.check_streams(now_s=late_s, keep_alive_s=10, slow_reader_s=30)
    await asyncio.wait_for(running, 20)

    assert call.failure is not None
    assert call.failure.code == "slow_reader"
    is_begun = held_up == "http.response.body"
    assert (connection.is_dropped, connection.last is not None) == (not is_begun, is_begun)


async def test_the_time_that_a_record_takes_is_not_its_readers() -> None:
    client, call = Client(lingers=False), open_call()
    calls, is_saving, is_saved = OpenCalls(buffer_bytes_max=100), asyncio.Event(), asyncio.Event()
    calls.add(call)

    class Slow:
        async def record(self, message: Message) -> None:
            if b"[DONE]" in message.get("body", b""):
                is_saving.set()
                await is_saved.wait()

        async def close(self) -> None:
            pass

    running = answering(call, client.send, recording=Slow())
    calls.receive_replies([reply(call, b"{}", end=ReplyEnd(200, b""))], replica_id="r", now_s=1.0)
    await asyncio.wait_for(is_saving.wait(), 20)
    late_s = SystemClock().monotonic_s() + 31
    calls.check_streams(now_s=late_s, keep_alive_s=10, slow_reader_s=30)
    is_saved.set()
    await asyncio.wait_for(running, 20)

    assert call.failure is None
    assert client.body.endswith(DONE)
