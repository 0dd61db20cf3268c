"""Goal: figures belong to the named processes; a wrong output or a broken call voids its run."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.children.floor import convert
from benchmarks.children.online_load import LoadTask, is_complete
from benchmarks.children.upstream import call_bytes
from benchmarks.data import input_files
from benchmarks.data.result_records import ORDERS, group_records, records
from benchmarks.machine import settings_of_roles
from benchmarks.measurements.online_during_bulk import slots_for_cores
from benchmarks.reporting import number
from benchmarks.runs import VoidRunError
from benchmarks.stacks.load_runs import run_load
from benchmarks.stacks.stack import parse_ready, role_of
from benchmarks.stacks.verification import verify_output
from benchmarks.statistics.cpu import (
    TICK_S,
    Process,
    cpu_by_role,
    cpu_used,
    parse_memory,
    parse_stat,
    process_trees,
)
from benchmarks.work_folders import work_folder
from cli.load.load_client import LoadTarget
from registry.sources.settings import SourceSettings
from tests.support.scripted_http import STREAM_HEAD, chunk, scripted_http
from tests.unit.docs.settings_classes import settings_classes


def test_a_command_name_with_brackets_does_not_shift_the_fields() -> None:
    fields = "7 1 1 0 -1 4194560 5 0 0 0 100 50 30 20 20 0 1 0"

    found = parse_stat(f"42 (postgres: a) (b) S {fields}\n")

    assert (found.pid, found.parent) == (42, 7)
    assert found.cpu_s == pytest.approx(200 * TICK_S)


def test_a_tree_has_the_descendants_of_its_root_only() -> None:
    parents = ((1, 0), (2, 1), (3, 2), (4, 3), (9, 1))
    table = {pid: Process(pid, parent, 1.0) for pid, parent in parents}

    found = process_trees({"supervisor": 1, "role": 2, "ended": 8}, table)

    pids = {role: [process.pid for process in processes] for role, processes in found.items()}
    assert pids == {"supervisor": [1, 9], "role": [2, 3, 4], "ended": []}


def test_this_process_uses_cpu() -> None:
    before = cpu_by_role({"me": os.getpid()})
    sum(number * number for number in range(2_000_000))

    assert cpu_used(before, cpu_by_role({"me": os.getpid()}))["me"] > 0


def test_a_kernel_thread_has_no_memory() -> None:
    assert parse_memory("Name:\tx\nRssAnon:\t 2 kB\nRssFile:\t 1 kB\n") == (2048, 1024, 0)
    assert parse_memory("Name:\tkworker\n") == (0, 0, 0)


def test_input_lines_are_reproducible_and_of_one_size(tmp_path: Path) -> None:
    lines = list(input_files.chat_lines(50, model="m"))

    assert {len(line) for line in lines} == {input_files.LINE_BYTES}
    assert lines == list(input_files.chat_lines(50, model="m"))
    assert [json.loads(line)["custom_id"] for line in lines] == list(
        map(input_files.custom_id, range(50))
    )
    assert input_files.chat_file(tmp_path / "x", 50, model="m").path.read_bytes() == b"".join(lines)
    (choice,) = json.loads(input_files.chat_answer(7))["choices"]
    assert len(choice["message"]["content"]) == 4 * input_files.OUTPUT_TOKENS


def test_the_floor_writes_a_valid_output(tmp_path: Path) -> None:
    source = input_files.chat_file(tmp_path / "in", 250, model="m").path
    target = tmp_path / "out"
    with source.open("rb") as reading, target.open("wb") as writing:
        convert(reading, writing)

    verify_output(target, 250)
    with pytest.raises(VoidRunError):
        verify_output(target, 251)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: lines[::-1],
        lambda lines: [lines[0], lines[0]],
        lambda lines: [lines[0], b"{}\n"],
        lambda lines: [lines[0], lines[1].replace(b":200", b":500")],
        lambda lines: lines[:1],
    ],
    ids=["order", "duplicate", "shape", "status", "missing"],
)
def test_a_wrong_output_voids_its_run(
    tmp_path: Path, spoil: Callable[[list[bytes]], list[bytes]]
) -> None:
    line = '{"custom_id":"r-%d","response":{"status_code":200,"body":{}},"error":null}\n'
    output = tmp_path / "out"
    output.write_bytes(b"".join(spoil([(line % index).encode() for index in range(2)])))

    with pytest.raises(VoidRunError):
        verify_output(output, 2)


def test_the_ready_line_is_found_in_the_log() -> None:
    log = '{"event":"ready"}\nready http://127.0.0.1:8080 key sk-abc\n'

    assert parse_ready(log) == ("http://127.0.0.1:8080", "sk-abc")
    assert parse_ready("ready soon\n") is None


@pytest.mark.parametrize(
    ("command_line", "role"),
    [
        (["/x/python", "-m", "api"], "api"),
        (["/x/python", "-m", "jobs"], "intake"),
        (["/x/python", "-m", "results", "writer"], "results-writer"),
        (["/x/python", "-m", "results", "finaliser"], "finaliser"),
        (["/x/java", "-Xmx512m", "kafka.Kafka", "server.properties"], "kafka"),
        (["/x/bin/postgres", "-D", "cluster"], "postgres"),
        ([], "unknown"),
    ],
)
def test_roles_are_identified_by_their_command_lines(command_line: list[str], role: str) -> None:
    assert role_of(command_line) == role


def test_a_call_is_complete_with_its_body() -> None:
    call = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"

    assert [call_bytes(call[:size]) for size in (10, len(call) - 1, len(call))] == [0, 0, len(call)]
    assert call_bytes(call + b"GET") == len(call)
    assert call_bytes(b"GET / HTTP/1.1\r\n\r\n") == 18
    with pytest.raises(ValueError, match="head"):
        call_bytes(b"x" * 100_000)


@pytest.mark.parametrize("name", ORDERS)
def test_a_fifth_of_the_results_is_redelivered(name: str) -> None:
    new = records(20_000)

    groups = group_records(ORDERS[name](new))
    indexes = [item.index for group in groups for item in group]

    assert len(indexes) == 20_000
    assert set(indexes) == set(range(16_000))


@pytest.mark.parametrize(
    ("cores", "slots"), [(1.0, 100), (0.4, 100), (2.0, 50), (1.5, 67), (1e6, 4), (0.0, 100)]
)
def test_a_job_gets_slots_for_half_of_the_machine(cores: float, slots: int) -> None:
    assert slots_for_cores(cores, 1.0) == slots


def test_settings_are_reported_without_secrets() -> None:
    env = {
        "MILLRACE_BATCHER_POLL_RECORDS": "8",
        "MILLRACE_ENGINE_UPSTREAM_API_KEY": "secret",
        "MILLRACE_KAFKA_SASL_PASSWORD": "secret",
        "PATH": "/bin",
    }

    assert settings_of_roles(env) == {"MILLRACE_BATCHER_POLL_RECORDS": "8"}


def test_a_report_has_settings_of_every_role() -> None:
    of_roles = [cls for cls in settings_classes() if cls is not SourceSettings]  # of commands
    env = {f"{cls.env_prefix}ANY": "1" for cls in of_roles}

    assert settings_of_roles(env) == env


def test_numbers_have_three_significant_digits() -> None:
    assert [number(v) for v in (48_512.3, 312.4, 31.04, 0.634)] == ["48,512", "312", "31.0", "0.63"]


@pytest.mark.parametrize("keep", [True, False])
def test_a_missing_parent_is_created(tmp_path: Path, keep: bool) -> None:
    notes: list[str] = []
    parent = tmp_path / "not" / "there"
    with work_folder("quick", parent=parent, keep=keep, note=notes.append) as work:
        assert work.parent == parent
        assert work.stat().st_mode & 0o777 == 0o755
        (work / "data").mkdir()
    assert work.exists() == keep
    assert notes == ([f"kept {work}"] if keep else [])


def test_the_folder_of_a_failed_run_is_removed(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="no space"),
        work_folder("failing", parent=tmp_path, keep=False, note=lambda _: None),
    ):
        raise OSError("no space")
    assert not list(tmp_path.iterdir())


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
