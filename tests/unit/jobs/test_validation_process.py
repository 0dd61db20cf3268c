"""Goal: a process validates a file as a thread would, and its end fails only that file."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent

import pytest

from core.bodies.body_limit_settings import DEFAULT_BODY_LIMITS
from core.clock import SystemClock
from core.errors import LeaseLostError
from jobs.input.line_reader import InputChangedError
from jobs.validation.file_validation import ValidationResult
from jobs.validation.model_rule import PinnedModels
from jobs.validation.validation_process import (
    NICENESS,
    ValidationProcessError,
    ValidationProcesses,
)
from jobs.validation.validation_task import ExistingFiles, ValidationTask
from registry.models import ModelVersion
from tests.support.clock import ManualClock

MODEL = ModelVersion(
    "m", "1", "pool", "simulated", ("/v1/embeddings",), datetime(2026, 1, 1, tzinfo=UTC)
)
TASK = ValidationTask("/v1/embeddings", 1000, 4096, DEFAULT_BODY_LIMITS)
APPEND = ValidationTask(
    "/v1/embeddings",
    1000,
    4096,
    DEFAULT_BODY_LIMITS,
    ExistingFiles(PinnedModels({"m": "1"}, "pool", "1"), 3, (0, 2)),
)


def line(custom_id: str, *, model: str = "m", value: str = "text") -> bytes:
    return (
        f'{{"custom_id":"{custom_id}","method":"POST","url":"/v1/embeddings",'
        f'"body":{{"model":"{model}","input":"{value}"}}}}\n'
    ).encode()


FILES = {
    "valid": [line("a"), line("b")],
    "empty": [],
    "repeated": [line("a"), line("b") + line("a"), line("b")],
    "half a line": [line("a")[:20], line("a")[20:] + b"{", b"}\n"],
    "no JSON": [b"no\n", b"\xff\xfe\n", b"{}\n" * 500],
    "deep": [b"[" * 3000 + b"\n"],
    "long line": [line("a", value="x" * 5000)],
    "unknown model": [line("a", model="n"), line("b")],
    "two models": [line("a"), line("b", model="n")],
    "too many": [line(str(n)) for n in range(1200)],
}
EARLIER = [[line("x") + line("y")], [line("z")]]


def find_model(name: str) -> ModelVersion | None:
    return MODEL if name == "m" else None


def go_on() -> None: ...


@pytest.fixture(scope="module")
def processes() -> Iterator[ValidationProcesses]:
    processes = ValidationProcesses(SystemClock())
    yield processes
    processes.close()


def children() -> set[int]:
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for path in found for pid in path.read_text().split()}


@pytest.mark.parametrize("name", FILES)
def test_a_process_validates_a_file_as_a_thread_does(
    processes: ValidationProcesses, name: str
) -> None:
    def read_file(number: int) -> Iterator[bytes]:
        yield from ([*EARLIER, FILES[name]])[number]

    def read_only_file(_: int) -> Iterator[bytes]:
        yield from FILES[name]

    expected = TASK.validate(read_only_file, find_model)
    assert processes.validate(TASK, read_only_file, find_model, go_on) == expected
    expected = APPEND.validate(read_file, find_model)
    assert processes.validate(APPEND, read_file, find_model, go_on) == expected


def test_ids_of_the_files_before_are_found(processes: ValidationProcesses) -> None:
    files = [*EARLIER, [line("n"), line("z")]]
    result = processes.validate(APPEND, lambda number: files[number], find_model, go_on)
    assert [(e.code, e.line) for e in result.errors] == [("duplicate_custom_id", 2)]


def test_a_validated_file_that_changed_is_an_error_of_the_job(
    processes: ValidationProcesses,
) -> None:
    files = [[b"no JSON\n"], [line("z")], [line("n")]]
    with pytest.raises(InputChangedError):
        processes.validate(APPEND, lambda number: files[number], find_model, go_on)


def test_one_process_validates_many_files_and_a_killed_one_is_replaced() -> None:
    processes, before = ValidationProcesses(SystemClock()), children()

    def validate() -> ValidationResult:
        return processes.validate(TASK, lambda _: FILES["valid"], find_model, go_on)

    validate()
    (first,) = children() - before
    validate()
    assert children() - before == {first}
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert validate().item_count == 2
    processes.close()
    assert children() == before


def test_a_process_that_ends_in_the_middle_is_an_error_and_leaves_nothing() -> None:
    processes, before, closed = ValidationProcesses(SystemClock()), children(), []

    def read_file(_: int) -> Iterator[bytes]:
        try:
            yield line("a")
            (pid,) = children() - before
            os.kill(pid, signal.SIGKILL)
            while True:
                yield line("b")
        finally:
            closed.append(True)

    with pytest.raises(ValidationProcessError):
        processes.validate(TASK, read_file, find_model, go_on)
    assert closed
    assert children() == before


@pytest.mark.parametrize("where", ["reading", "model"])
def test_errors_of_the_callables_reach_the_caller_and_end_the_process(where: str) -> None:
    processes, before = ValidationProcesses(SystemClock()), children()

    def read_file(_: int) -> Iterator[bytes]:
        yield line("a")
        if where == "reading":
            raise LeaseLostError(job_id="j")
        yield line("b")

    def find(name: str) -> ModelVersion | None:
        if where == "model":
            raise LeaseLostError(job_id="j")
        return find_model(name)

    with pytest.raises(LeaseLostError):
        processes.validate(TASK, read_file, find, go_on)
    assert children() == before


SILENT = (sys.executable, "-c", "import time; time.sleep(600)")


def test_a_process_that_does_not_answer_is_ended_after_its_time() -> None:
    clock, before = ManualClock(), children()
    processes = ValidationProcesses(clock, SILENT)

    def pass_time() -> None:
        clock.advance(250)

    with pytest.raises(ValidationProcessError):
        processes.validate(TASK, lambda _: [], find_model, pass_time)
    assert clock.now_s == 750
    assert children() == before


def test_a_process_that_stops_reading_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.validation.validation_process.MESSAGE_S_MAX", 1.0)
    processes, before = ValidationProcesses(SystemClock()), children()

    def read_file(_: int) -> Iterator[bytes]:
        (pid,) = children() - before
        os.kill(pid, signal.SIGSTOP)
        yield line("a") * 100_000

    with pytest.raises(ValidationProcessError):
        processes.validate(TASK, read_file, find_model, go_on)
    assert children() == before


def test_a_lost_lease_ends_a_process_that_computes() -> None:
    before = children()

    def stop() -> None:
        raise LeaseLostError(job_id="j")

    with pytest.raises(LeaseLostError):
        ValidationProcesses(SystemClock(), SILENT).validate(TASK, lambda _: [], find_model, stop)
    assert children() == before


def test_a_program_that_cannot_start_is_an_error_of_the_process() -> None:
    with pytest.raises(ValidationProcessError):
        ValidationProcesses(SystemClock(), ("/nowhere",)).validate(
            TASK, lambda _: [], find_model, go_on
        )


def test_a_process_has_lower_priority_and_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DATABASE_URL", "postgresql://user:secret@host/name")
    before = children()
    niceness: list[int] = []
    environment: list[bytes] = []

    def find(name: str) -> ModelVersion | None:
        (pid,) = children() - before
        niceness.append(os.getpriority(os.PRIO_PROCESS, pid) - os.nice(0))
        environment.append(Path(f"/proc/{pid}/environ").read_bytes())
        return find_model(name)

    processes = ValidationProcesses(SystemClock())
    processes.validate(TASK, lambda _: FILES["valid"], find, go_on)
    processes.close()
    assert niceness == [NICENESS]
    assert b"MILLRACE" not in environment[0]


def test_a_process_ends_with_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", dedent(PARENT)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    ends_s = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < ends_s
        time.sleep(0.05)
    parent.stdout.close()


PARENT = """
    import time
    from core.bodies.body_limit_settings import DEFAULT_BODY_LIMITS
    from core.clock import SystemClock
    from jobs.validation.validation_process import ValidationProcess
    from jobs.validation.validation_task import ValidationTask

    process = ValidationProcess(SystemClock())
    task = ValidationTask("/v1/embeddings", 10**9, 4096, DEFAULT_BODY_LIMITS)
    def blocks(_):
        yield b"{}"
        print(process._popen.pid, flush=True)
        while True:
            yield b"{}" * 1000
    process.validate(task, blocks, lambda _: None, lambda: None)
"""


def test_a_process_imports_no_database_and_no_broker_client() -> None:
    """Each process starts anew: these imports are more than half of the start."""
    found = subprocess.run(
        (
            sys.executable,
            "-c",
            "import sys, jobs.validation.validation_main;"
            "print(*{'sqlalchemy', 'psycopg', 'confluent_kafka', 'httpx'} & sys.modules.keys())",
        ),
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout == "\n"
