"""Goal: a broken stream or a lost connection is no measurement."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.children.online_load import LoadTask, is_complete
from benchmarks.runs import VoidRunError
from benchmarks.stacks.load_runs import run_load
from cli.load.load_client import LoadTarget
from tests.support.scripted_http import STREAM_HEAD, chunk, scripted_http

PIECE = b'data: {"choices":[]}\n\n'
ERROR = b'data: {"error":{"code":"interrupted"}}\n\n'
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"


def stream(body: bytes) -> bytes:
    return STREAM_HEAD + (chunk(body) if body else b"") + chunk(b"")


@pytest.mark.parametrize(
    ("body", "is_good"),
    [
        (PIECE * 2 + COMMENT + PIECE + DONE, True),
        (PIECE * 3, False),
        (PIECE * 2 + DONE, False),
        (PIECE * 3 + ERROR + DONE, False),
        (b"", False),
    ],
    ids=["complete", "interrupted", "few", "error, then done", "empty"],
)
async def test_a_stream_is_complete_with_all_pieces_and_its_end(body: bytes, is_good: bool) -> None:
    async with scripted_http(stream(body)) as url:
        connection = await LoadTarget(url, "key", b"{}").connect()
        call = await connection.send()
        connection.close()

    assert is_complete(call, 3) == is_good
    assert is_complete(call, 0)  # a unary call needs only a status


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([stream(PIECE * 3 + ERROR)], "4 streams"),
        ([stream(PIECE * 2 + DONE)], "4 streams"),
        ([STREAM_HEAD, chunk(PIECE), b""], "clients"),
    ],
    ids=["error", "few", "disconnected"],
)
async def test_a_failed_call_voids_its_run(parts: list[bytes], reason: str, tmp_path: Path) -> None:
    async with scripted_http(*parts) as url:
        with pytest.raises(VoidRunError, match=reason):
            await asyncio.to_thread(run_load, task_for(url), tmp_path)


async def test_complete_streams_are_counted_by_their_pieces(tmp_path: Path) -> None:
    async with scripted_http(stream(PIECE * 3 + DONE)) as url:
        found = await asyncio.to_thread(run_load, task_for(url), tmp_path)

    assert (found.pieces, found.broken, found.refused) == (12, 0, 0)


def task_for(url: str) -> LoadTask:
    return LoadTask(url=url, key="k", body="{}", clients=2, calls=4, pieces_min=3)
