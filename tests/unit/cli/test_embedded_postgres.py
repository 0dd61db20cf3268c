"""Goal: the embedded Postgres waits out a busy machine, and keeps out of folders of others."""

import os
import subprocess
from pathlib import Path

import pytest

from cli.stack.errors import StackError
from cli.stack.postgres import EmbeddedPostgres, _make_private


def test_a_question_that_takes_too_long_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dawdle(command: tuple[str, ...], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", dawdle)
    assert not EmbeddedPostgres(tmp_path).is_ready()


def test_the_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "socket"
    _make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700

    stranger = os.geteuid() + 40_000
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    with pytest.raises(StackError, match="belongs to somebody else"):
        _make_private(folder)


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "socket").symlink_to(tmp_path / "target")
    with pytest.raises(StackError, match="belongs to somebody else"):
        _make_private(tmp_path / "socket")
