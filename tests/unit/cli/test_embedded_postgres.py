"""Goal: the embedded Postgres waits out a busy machine, and keeps out of folders of others."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from sqlalchemy import make_url

from cli.stack.errors import StackError
from cli.stack.services.embedded_postgres import EmbeddedPostgres, _create_owned_folder


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
    _create_owned_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700

    stranger = os.geteuid() + 40_000
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    with pytest.raises(StackError, match="belongs to another user"):
        _create_owned_folder(folder)


def test_a_server_that_is_gone_leaves_no_folder_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddedPostgres, "_unprivileged_prefix", lambda _: ())
    data = tmp_path / ("d" * 100)
    (data / "postgres" / "cluster").mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:  # a short path, which pytest's is not
        monkeypatch.setattr("tempfile.tempdir", shared)
        server = EmbeddedPostgres(data)
        server.prepare()
        (folder,) = Path(shared).glob("millrace-*")

        (folder / "socket").touch()
        server.remove_socket_folder()
        assert folder.exists(), "somebody may still use it"
        (folder / "socket").unlink()
        server.remove_socket_folder()
        server.remove_socket_folder()

        assert not folder.exists()


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "socket").symlink_to(tmp_path / "target")
    with pytest.raises(StackError, match="belongs to another user"):
        _create_owned_folder(tmp_path / "socket")


def test_root_without_user_namespaces_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedPostgres(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("cli.stack.services.embedded_postgres._create_owned_folder", lambda _: None)
    monkeypatch.setattr("cli.stack.services.embedded_postgres._succeeds", lambda *_: False)

    with pytest.raises(StackError, match="run as another user"):
        server.prepare()


def test_the_url_names_a_folder_with_signs_that_urls_know() -> None:
    with tempfile.TemporaryDirectory(prefix="a+b%41&c=d #e?") as folder:  # a socket's path is short
        url = make_url(EmbeddedPostgres(Path(folder)).url)

    assert url.query["host"] == str(Path(folder) / "postgres" / "socket")
    assert list(url.query) == ["host"]
