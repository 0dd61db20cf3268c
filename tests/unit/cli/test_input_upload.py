"""Goal: an upload is complete, and its file is deleted or named after a failure."""

import io
import os
import sys
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import IO, Any

import openai
import pytest
from typer.testing import Result

from cli.api_client import connect
from cli.batch.input_upload import FileChangedError, rereadable_input, uploaded_input
from cli.exits import ExitCode
from tests.unit.cli.scripted_server import Answer, Server, batch, millrace, serving

FILE_ID = f"file-{'0' * 32}"
FILE = Answer({"id": FILE_ID, "object": "file"})
BATCH = Answer({"id": "batch_1", "object": "batch", "status": "validating"})
DELETED = Answer({"id": FILE_ID, "object": "file", "deleted": True})
LINE = b'{"custom_id": "1"}\n'
REFUSED = {"error": {"message": "Supported are /v1/x.", "param": "endpoint", "code": "no"}}
INVALID = {"code": "invalid_json", "message": "This is no JSON.", "line": 3, "param": None}
FAILED = batch("failed", errors={"object": "list", "data": [INVALID]}).to_dict(mode="json")


@pytest.fixture
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.BaseClient._calculate_retry_timeout", lambda *_: 0.01)


def submit(server: Server, *arguments: str, stdin: bytes = b"") -> Result:
    options = ("--endpoint", "/v1/embeddings")
    return millrace(server.url, "batch", "submit", *arguments, *options, stdin=stdin)


def test_fifo_is_uploaded_completely(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    writer = Thread(target=fifo.write_bytes, args=(LINE * 10_000,))
    writer.start()
    with serving(FILE, BATCH) as server:
        done = submit(server, str(fifo))
    writer.join()

    assert (done.exit_code, done.stdout) == (ExitCode.OK, "batch_1\n"), done.output
    assert LINE * 10_000 in server.bodies[0]


def test_file_name_may_be_any_bytes(tmp_path: Path) -> None:
    path = os.fsdecode(bytes(tmp_path) + b"/\xff.jsonl")
    Path(path).write_bytes(LINE)
    with serving(FILE, BATCH) as server:
        done = submit(server, path)

    assert (done.exit_code, done.stdout) == (ExitCode.OK, "batch_1\n"), done.output
    assert 'filename="\N{REPLACEMENT CHARACTER}.jsonl"'.encode() in server.bodies[0]


def test_metadata_must_be_utf_8() -> None:
    with serving(FILE, BATCH) as server:
        done = submit(server, "-", "--metadata", os.fsdecode(b"a=\xff"), stdin=LINE)

    assert done.exit_code == ExitCode.USAGE
    assert "--metadata" in done.stderr
    assert server.seen == []


def test_unencodable_request_deletes_the_file() -> None:
    with serving(FILE, DELETED) as server:
        done = submit(server, "-", "--completion-window", os.fsdecode(b"\xff"), stdin=LINE)

    assert done.exit_code == ExitCode.USAGE
    assert done.stderr == "millrace: An argument contains bytes that are not UTF-8.\n"
    assert server.seen == ["POST /v1/files", f"DELETE /v1/files/{FILE_ID}"]


def test_file_id_is_used_and_not_deleted() -> None:
    with serving(BATCH) as server:
        done = submit(server, FILE_ID)

    assert (done.exit_code, done.stdout) == (ExitCode.OK, "batch_1\n"), done.output
    assert server.seen == ["POST /v1/batches"]
    assert FILE_ID.encode() in server.bodies[0]

    refusal = {"error": {"message": "No such file.", "code": "file_not_found", "param": None}}
    with serving(Answer(refusal, status=400)) as server:
        done = submit(server, FILE_ID)

    assert done.exit_code == ExitCode.NOT_FOUND
    assert server.seen == ["POST /v1/batches"]


def test_existing_path_takes_precedence_over_a_file_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(FILE_ID).write_bytes(LINE)
    with serving(FILE, BATCH) as server:
        done = submit(server, FILE_ID)

    assert done.exit_code == ExitCode.OK
    assert server.seen == ["POST /v1/files", "POST /v1/batches"]


def test_interrupt_names_the_uploaded_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINE)
    with (
        serving(FILE) as server,
        pytest.raises(KeyboardInterrupt),
        uploaded_input(connect(server.url, "sk-1"), str(tmp_path / "in.jsonl")),
    ):
        raise KeyboardInterrupt

    assert server.seen == ["POST /v1/files"]
    assert f"the uploaded file is {FILE_ID}" in capsys.readouterr().err


@pytest.mark.usefixtures("fast_retries")
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Answer({"error": {"code": "idempotency_key_in_flight"}}, status=409), ExitCode.CONFLICT),
        (Answer({}, status=500), ExitCode.FAILED),
    ],
    ids=["in flight", "server error"],
)
def test_unknown_outcome_keeps_and_names_the_file(answer: Answer, code: ExitCode) -> None:
    with serving(FILE, answer) as server:
        done = submit(server, "-", stdin=LINE)

    assert done.exit_code == code
    note = f"the uploaded file is {FILE_ID}: give this id as FILE to use it\n"
    assert note in done.stderr
    assert not any(request.startswith("DELETE") for request in server.seen)


@pytest.mark.parametrize(
    ("command", "path"),
    [
        (("submit", "-", "--endpoint", "/v1/embeddings"), "/v1/batches"),
        (("append", "batch_1", "-"), "/v1/batches/batch_1/append"),
    ],
)
def test_rejected_request_deletes_its_file(command: tuple[str, ...], path: str) -> None:
    with serving(FILE, Answer(REFUSED, status=400), DELETED) as server:
        done = millrace(server.url, "batch", *command, stdin=LINE)

    assert (done.exit_code, done.stdout) == (ExitCode.FAILED, "")
    assert done.stderr == "millrace: endpoint: Supported are /v1/x.\n"
    assert server.seen == ["POST /v1/files", f"POST {path}", f"DELETE /v1/files/{FILE_ID}"]


def test_quiet_wait_prints_validation_errors() -> None:
    with serving(FILE, Answer(FAILED)) as server:
        done = submit(server, "-", "--wait", "--quiet", stdin=LINE)

    assert done.exit_code == ExitCode.JOB_FAILED
    assert done.stderr == "line 3: This is no JSON. (invalid_json)\n"


class GrowingFileClient:
    """A stand-in for the client during whose upload the file grows."""

    def __init__(self, path: Path, failure: Exception) -> None:
        self.files = SimpleNamespace(create=self._create)
        self._path, self._failure = path, failure

    def _create(self, **_: object) -> None:
        with self._path.open("ab") as file:
            file.write(LINE)
        raise self._failure


@pytest.mark.parametrize(
    ("failure", "raised", "message"),
    [
        (RuntimeError("too much data"), FileChangedError, r"in\.jsonl: it changed during"),
        (openai.OpenAIError("unavailable"), openai.OpenAIError, "unavailable"),
    ],
)
def test_file_that_changes_during_the_upload_fails(
    tmp_path: Path, failure: Exception, raised: type[Exception], message: str
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(LINE)
    client: Any = GrowingFileClient(source, failure)

    with pytest.raises(raised, match=message), uploaded_input(client, str(source)):
        pass


def test_input_can_be_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINE)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINE)))

    for path in (str(tmp_path / "in.jsonl"), "-"):
        with rereadable_input(path) as file:
            first = file.read()
            file.seek(0)
            assert (first, file.read()) == (LINE, LINE)


def test_full_disk_error_names_the_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> IO[bytes]:
        return Path("/dev/full").open("r+b")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/scratch")
    with serving(FILE) as server:
        done = submit(server, "-", stdin=LINE)

    assert done.exit_code == ExitCode.FAILED
    assert done.stderr == "millrace: /scratch: No space left on device\n"
    assert server.seen == []
