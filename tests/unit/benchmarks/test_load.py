"""Goal: a broken stream is no measurement, and only parts of an answer count as tokens."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.children.online_load import LoadTask, is_complete
from benchmarks.load.calls import Call, connected, post
from benchmarks.load.load_runs import run_load
from benchmarks.runs import VoidRunError

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b'data: {"choices":[]}\n\n'
ERROR = b'data: {"error":{"code":"interrupted"}}\n\n'
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"

Split = Callable[[bytes], list[bytes]]


def unsplit(body: bytes) -> list[bytes]:
    return [body] if body else []


def byte_by_byte(body: bytes) -> list[bytes]:
    return [body[at : at + 1] for at in range(len(body))]


@asynccontextmanager
async def server(body: bytes, split: Split = unsplit) -> AsyncIterator[int]:
    """Answer every call with a chunk for each part of `body`; yield the port."""
    serving: set[asyncio.Task[None] | None] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            await reader.readexactly(2)
            writer.write(HEAD)
            for part in split(body):
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1]
        await asyncio.gather(*filter(None, serving))  # the clients have disconnected


async def call_once(body: bytes, split: Split) -> Call:
    async with server(body, split) as port:
        connection = await connected("127.0.0.1", port)
        call = await connection.ask(post("any", "/", "key", b"{}"))
        connection.close()
    return call


@pytest.mark.parametrize("split", [unsplit, byte_by_byte])
@pytest.mark.parametrize(
    ("body", "pieces", "is_good"),
    [
        (PIECE * 3 + DONE, 3, True),
        (PIECE * 2 + COMMENT + PIECE + DONE, 3, True),
        (PIECE * 3, 3, False),
        (PIECE * 2 + DONE, 2, False),
        (PIECE * 3 + ERROR, 3, False),
        (PIECE * 3 + ERROR + DONE, 3, False),
        (b"", 0, False),
    ],
    ids=["complete", "comment", "interrupted", "few", "error", "error, then done", "empty"],
)
async def test_a_stream_is_complete_with_all_pieces_and_its_end(
    body: bytes, pieces: int, is_good: bool, split: Split
) -> None:
    call = await call_once(body, split)

    assert call.pieces == pieces
    assert is_complete(call, 3) == is_good
    assert is_complete(call, 0)  # a unary call needs only a status


@pytest.mark.parametrize(
    "body",
    [PIECE * 3 + ERROR, PIECE * 2 + DONE, PIECE * 3],
    ids=["error", "few", "interrupted"],
)
async def test_a_broken_stream_voids_its_run(body: bytes, tmp_path: Path) -> None:
    async with server(body) as port:
        with pytest.raises(VoidRunError, match="4 streams"):
            await asyncio.to_thread(run_load, task_for(port), tmp_path)


async def test_complete_streams_are_counted_by_their_pieces(tmp_path: Path) -> None:
    async with server(PIECE * 3 + DONE) as port:
        found = await asyncio.to_thread(run_load, task_for(port), tmp_path)

    assert (found.pieces, found.broken, found.refused) == (12, 0, 0)


def task_for(port: int) -> LoadTask:
    url = f"http://127.0.0.1:{port}"
    return LoadTask(url=url, key="k", path="/", body="{}", clients=2, calls=4, pieces_min=3)
