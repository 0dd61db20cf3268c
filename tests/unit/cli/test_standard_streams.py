"""Goal: a command ends with its exit code whatever the standard streams are."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cli.exits import ExitCode, exit_codes
from cli.output import prepare_streams, write_json, write_table

MILLRACE = f"{sys.executable} -m cli.main"


def shell(command: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash; $MILLRACE is the command."""
    return subprocess.run(
        ["bash", "-c", command],
        check=False,
        capture_output=True,
        env={**os.environ, "MILLRACE": MILLRACE, **variables},
        timeout=60,
    )


@pytest.mark.parametrize("command", ["topics list -o json", "topics list", "--help"])
def test_full_stdout_fails_the_command(command: str) -> None:
    done = shell(f"$MILLRACE {command} > /dev/full")

    assert done.returncode == ExitCode.FAILED
    assert done.stderr.startswith(b"millrace: ")
    assert done.stderr.endswith(b"No space left on device\n")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("output_format", ["json", "table"])
def test_closed_pipe_ends_the_command_quietly(output_format: str) -> None:
    # The reader of the pipe ends before the command starts.
    done = shell(
        f"exec 3> >(exec true); wait $!; $MILLRACE topics list -o {output_format} >&3; echo $? >&2"
    )

    assert done.stderr == b"1\n"


def test_failure_keeps_its_exit_code_without_stderr() -> None:
    done = shell("$MILLRACE batch list 2> /dev/full", MILLRACE_KEY="")

    assert done.returncode == ExitCode.AUTH


def test_closed_streams_become_dev_null() -> None:
    done = shell("$MILLRACE topics list <&- >&- 2>&-")

    assert done.returncode == ExitCode.OK


def latin_1(monkeypatch: pytest.MonkeyPatch, name: str, content: bytes = b"") -> io.BytesIO:
    """Replace a standard stream by a strict Latin-1 stream; return its buffer."""
    content_bytes = io.BytesIO(content)
    monkeypatch.setattr(sys, name, io.TextIOWrapper(content_bytes, encoding="latin-1"))
    return content_bytes


def test_unencodable_output_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = latin_1(monkeypatch, "stdout")
    prepare_streams()

    write_table(("key",), [("sk-…é",), ("\udcff",)])
    write_json({"emoji": "😀"})
    sys.stdout.flush()

    assert written.getvalue() == (
        b'KEY\nsk-\\u2026\xe9\n\\udcff\n{\n  "emoji": "\\ud83d\\ude00"\n}\n'
    )


def test_undecodable_input_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", typed)
    prepare_streams()

    assert sys.stdin.readline() == "caf\N{REPLACEMENT CHARACTER}\n"


def test_stdout_is_flushed_before_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        full.write("some\n")
        with pytest.raises(typer.Exit) as caught, exit_codes():
            raise typer.Exit(ExitCode.ITEMS_FAILED)

    assert caught.value.exit_code == ExitCode.FAILED
    assert capsys.readouterr().err == "millrace: stdout: No space left on device\n"
