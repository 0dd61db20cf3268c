"""Goal: the demo finds missing, repeated and misplaced results, and keeps logs of failures."""

import base64
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from cli.batch.job_progress import JobStatus
from cli.demo import demo_stack
from cli.demo.demo_command import most_similar, read_embeddings
from cli.demo.demo_jobs import (
    JOBS,
    QUERIES,
    DemoJob,
    FinishedJob,
    custom_ids,
    find_problems,
    run_job,
    write_inputs,
    write_requests,
)
from cli.demo.demo_texts import (
    TEXT_CHARS_MAX,
    DocumentedName,
    collect_docstrings,
    module_name,
    parse_docstrings,
    sample_evenly,
    standard_library,
)
from cli.stack.errors import StackTimeoutError
from cli.stack.processes.child import Child
from core.states import JobState
from tests.unit.cli.scripted_server import batch


def finished(
    folder: Path, requested: list[str], answered: list[str], failed: list[str], **counts: int
) -> FinishedJob:
    files = DemoJob("job", "/v1/embeddings").files(folder)
    write_requests(files.requests, "/v1/embeddings", ((name, {}) for name in requested))
    for path, names in ((files.results, answered), (files.errors, failed)):
        path.write_bytes(b"".join(msgspec.json.encode({"custom_id": n}) + b"\n" for n in names))
    sums = {"succeeded": len(answered), "failed": len(failed), "cancelled": 0, "expired": 0}
    progress = JobStatus(JobState.COMPLETED, len(requested), **(sums | counts))
    return FinishedJob(progress, files, seconds=2.0, tokens=0, first_result_at_s=0.0)


@pytest.mark.parametrize(
    ("answered", "failed", "counts", "problems"),
    [
        (["a", "b", "c"], [], {}, []),
        (["a", "c"], [], {}, ["1 requests are missing in both files"]),
        (["a", "b", "b", "c"], [], {}, ["1 requests were answered more than once"]),
        (["a", "b"], ["b", "c"], {}, ["1 requests were answered more than once"]),
        (["a", "b", "c", "d"], [], {}, ["1 results belong to no request"]),
        (["a", "c", "b"], [], {}, ["the results are not in the order of the requests"]),
        (["a", "b"], ["c"], {}, ["1 did not succeed"]),
        (
            ["a", "b", "c"],
            [],
            {"succeeded": 1},
            ["3 requests became 1 outcomes", "1 succeeded, 3 results"],
        ),
    ],
)
def test_each_violation_is_found(
    tmp_path: Path,
    answered: list[str],
    failed: list[str],
    counts: dict[str, int],
    problems: list[str],
) -> None:
    job = finished(tmp_path, ["a", "b", "c"], answered, failed, **counts)
    found = find_problems(job)
    assert set(problems) <= set(found)
    assert bool(found) == bool(problems)
    assert problems or job.items_per_s == 1.5


def test_inputs_of_every_job_are_written(tmp_path: Path) -> None:
    documented = [DocumentedName(f"module.name_{n}", "text") for n in range(5)]

    write_inputs(tmp_path, documented, prompt_count=7)

    counts = [len(set(custom_ids(job.files(tmp_path).requests))) for job in JOBS]
    assert counts == [5, len(QUERIES), 7]


def test_most_similar_names_come_first(tmp_path: Path) -> None:
    vectors = {"north": [0.0, 2.0], "east": [3.0, 0.0], "north-east": [1.0, 1.0]}
    lines = (
        {"custom_id": name, "response": {"body": {"data": [{"embedding": as_base64(vector)}]}}}
        for name, vector in vectors.items()
    )
    (tmp_path / "results.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))

    names, matrix = read_embeddings(tmp_path / "results.jsonl")
    found = most_similar(names, matrix, np.array([0.0, 1.0], np.float32), 2)

    assert [name for name, _ in found] == ["north", "north-east"]
    assert [cosine for _, cosine in found] == pytest.approx([1.0, 0.5**0.5])


def as_base64(vector: list[float]) -> str:
    return base64.b64encode(np.array(vector, "<f4").tobytes()).decode()


class UnendingJob:
    """A stand-in for the client, with a job that never ends."""

    def __init__(self) -> None:
        self.files = SimpleNamespace(create=lambda **_: SimpleNamespace(id="file-1"))
        self.batches = SimpleNamespace(
            create=lambda **_: batch("validating"), retrieve=lambda _: batch()
        )

    def with_options(self, **_: object) -> "UnendingJob":
        return self


def test_job_timeout_is_a_stack_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.demo.demo_jobs.JOB_S_MAX", 0.0)
    job = DemoJob("texts", "/v1/embeddings")
    write_requests(job.files(tmp_path).requests, job.endpoint, [("a", {})])

    with pytest.raises(StackTimeoutError, match="The job texts did not end within 0 s"):
        run_job(UnendingJob(), job, tmp_path)  # type: ignore[arg-type]


SOURCE = b'''
"""Module."""
raise SystemExit("parsed, never run")

def parse(text):
    """Parse
    a text.

    >>> parse("x")
    """

async def wait():
    """Wait."""
    def inner():
        """Not reachable by a name."""

class Reader:
    """Reads. +-----+"""
    def read(self):
        """Read it."""
    def close(self):
        pass
    def _hidden(self):
        """Private."""

class _Hidden:
    """Private."""
    def shown(self):
        """Behind a private name."""

def drawing():
    """+---+ | |"""
'''


def test_public_docstrings_are_found_in_source_order() -> None:
    assert list(parse_docstrings(SOURCE, "io")) == [
        DocumentedName("io.parse", "io.parse: Parse a text."),
        DocumentedName("io.wait", "io.wait: Wait."),
        DocumentedName("io.Reader", "io.Reader: Reads."),
        DocumentedName("io.Reader.read", "io.Reader.read: Read it."),
    ]
    for invalid in (b"def (", b"\0"):
        assert list(parse_docstrings(invalid, "bad")) == []


def test_module_names_are_public() -> None:
    assert module_name(Path("email/message.py")) == "email.message"
    assert module_name(Path("json/__init__.py")) == "json"
    assert module_name(Path("_pydatetime.py")) == "datetime"


def test_a_sample_is_even() -> None:
    all_of_them = [DocumentedName(f"{n:03}", "") for n in range(100)]

    assert [d.name for d in sample_evenly(all_of_them, 4)] == ["000", "025", "050", "075"]
    assert sample_evenly(all_of_them, 1000) == all_of_them
    assert sample_evenly([], 10) == []


def test_standard_library_has_thousands_of_docstrings() -> None:
    found = collect_docstrings(standard_library(), 4000)
    names = [documented.name for documented in found]

    assert len(set(names)) == len(names) == 4000
    assert names == sorted(names)
    assert max(len(documented.text) for documented in found) <= TEXT_CHARS_MAX
    assert not [name for name in names if name.startswith(("test.", "idlelib.", "_"))]


@pytest.fixture(autouse=True)
def short_lived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the stack by a process that ends at once."""

    def short_process(_options: Sequence[str], _data: Path) -> Child:
        return Child(name="up", argv=(sys.executable, "-c", "print('ready')"))

    monkeypatch.setattr(demo_stack, "_up", short_process)


@pytest.mark.parametrize("failure", [StackTimeoutError(), RuntimeError("a job failed"), None])
def test_only_a_failure_or_a_request_keeps_the_logs(
    failure: Exception | None, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    with demo_stack.demo_stack((), logs):
        pass
    assert not logs.exists()

    with (
        pytest.raises(type(failure)) if failure else contextlib.nullcontext(),
        demo_stack.demo_stack((), logs) as stack,
    ):
        if failure:
            raise failure
        stack.keep_logs()
    assert (logs / "up.log").is_file()


def test_folder_of_a_killed_demo_is_removed(tmp_path: Path) -> None:
    stale, unlocked = tmp_path / "millrace-demo-stale", tmp_path / "millrace-demo-data"
    other = tmp_path / "else"
    for folder in (stale, unlocked, other):
        (folder / "data" / "logs").mkdir(parents=True)
    (stale / "demo.lock").touch()

    demo_stack.remove_stale_folders(tmp_path, time.time())
    assert stale.exists(), "a starting demo may not have locked it yet"
    demo_stack.remove_stale_folders(tmp_path, time.time() + 120)

    assert not stale.exists()
    assert unlocked.exists(), "a folder without a lock file is not of a demo"
    assert other.exists()


def test_folder_of_a_running_demo_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with demo_stack.demo_stack((), tmp_path / "logs"):
        (data,) = tmp_path.glob("millrace-demo-*")
        demo_stack.remove_stale_folders(tmp_path, time.time() + 120)
        assert data.exists()
    assert not data.exists()
