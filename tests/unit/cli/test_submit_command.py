"""Goal: a rejected job leaves no file, and its reason is printed."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
from typer.testing import CliRunner, Result

from cli.exits import ExitCode
from cli.main import app
from tests.unit.cli.batches import batch

REFUSED = {"error": {"message": "Supported are /v1/x.", "param": "endpoint", "code": "no"}}
PROBLEM = {"code": "invalid_json", "message": "This is no JSON.", "line": 3, "param": None}
FAILED = batch("failed", errors={"object": "list", "data": [PROBLEM]}).to_dict(mode="json")


class Server(BaseHTTPRequestHandler):
    """An API that takes a file and answers the rest as the test says."""

    seen: ClassVar[list[str]]
    created: ClassVar[tuple[int, object]]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(
            *(
                (200, {"id": "file-1", "object": "file"})
                if self.path == "/v1/files"
                else self.created
            )
        )

    def do_GET(self) -> None:
        self._answer(200, FAILED)

    def do_DELETE(self) -> None:
        self._answer(200, {"id": "file-1", "object": "file", "deleted": True})

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: object) -> None:
        self.seen.append(f"{self.command} {self.path}")
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


@pytest.fixture
def url() -> Iterator[str]:
    """Where the server listens."""
    Server.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def submit(url: str, folder: Path, *options: str) -> Result:
    source = folder / "in.jsonl"
    source.write_bytes(b"{}\n")
    asked = ("batch", "submit", str(source), "--endpoint", "/v1/nope", *options)
    return CliRunner().invoke(app, asked, env={"MILLRACE_URL": url, "MILLRACE_KEY": "sk-1"})


def test_rejected_job_deletes_its_file(url: str, tmp_path: Path) -> None:
    Server.created = (400, REFUSED)

    done = submit(url, tmp_path)

    assert (done.exit_code, done.stdout) == (ExitCode.FAILED, "")
    assert done.stderr == "millrace: endpoint: Supported are /v1/x.\n"
    assert Server.seen == ["POST /v1/files", "POST /v1/batches", "DELETE /v1/files/file-1"]


def test_unknown_outcome_names_the_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai._base_client.BaseClient._calculate_retry_timeout", lambda *_: 0.01)
    Server.created = (500, {})

    done = submit(url, tmp_path)

    assert done.exit_code == ExitCode.FAILED
    assert "the uploaded file is file-1: give this id as FILE to use it\n" in done.stderr
    assert not any(call.startswith("DELETE") for call in Server.seen)


def test_rejected_append_deletes_its_file(url: str, tmp_path: Path) -> None:
    Server.created = (400, REFUSED)
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"{}\n")

    done = CliRunner().invoke(
        app,
        ["batch", "append", "batch_1", str(source)],
        env={"MILLRACE_URL": url, "MILLRACE_KEY": "sk-1"},
    )

    assert (done.exit_code, done.stdout) == (ExitCode.FAILED, "")
    assert Server.seen == [
        "POST /v1/files",
        "POST /v1/batches/batch_1/append",
        "DELETE /v1/files/file-1",
    ]


def test_quiet_wait_prints_validation_errors(url: str, tmp_path: Path) -> None:
    Server.created = (200, FAILED)

    done = submit(url, tmp_path, "--wait", "--quiet")

    assert done.exit_code == ExitCode.JOB_FAILED
    assert done.stderr == "line 3: This is no JSON. (invalid_json)\n"
