"""Goal: a server that accepts and never answers does not exceed the timeout."""

import socket
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.exits import ExitCode
from cli.main import app


@pytest.mark.parametrize(
    "arguments", [("watch", "batch_1"), ("submit", "in.jsonl", "--endpoint", "/v1/embeddings")]
)
def test_watch_times_out_when_the_server_does_not_answer(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_bytes(b"{}\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        env = {"MILLRACE_URL": url, "MILLRACE_KEY": "sk-none"}
        began_s = time.monotonic()
        done = CliRunner().invoke(app, ["batch", *arguments, "--timeout", "1"], env=env)

    assert done.exit_code == ExitCode.TIMEOUT, done.output
    assert time.monotonic() - began_s < 10
