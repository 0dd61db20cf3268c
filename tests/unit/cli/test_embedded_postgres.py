"""Goal: the embedded Postgres tolerates a busy machine and owns its folders."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from cli.stack.errors import StackError
from cli.stack.services.embedded_postgres import EmbeddedPostgres, _create_owned_folder


def test_slow_pg_isready_means_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(command: tuple[str, ...], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", time_out)
    assert not EmbeddedPostgres(tmp_path).is_ready()


def test_socket_folder_of_another_user_or_behind_a_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, link = tmp_path / "socket", tmp_path / "link"
    _create_owned_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    link.symlink_to(folder)
    with pytest.raises(StackError, match="belongs to another user"):
        _create_owned_folder(link)

    other_user = os.geteuid() + 40_000
    monkeypatch.setattr(os, "geteuid", lambda: other_user)
    with pytest.raises(StackError, match="belongs to another user"):
        _create_owned_folder(folder)


def test_socket_folder_is_removed_when_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddedPostgres, "_unprivileged_prefix", lambda _: ())
    monkeypatch.setattr(EmbeddedPostgres, "_set_password", lambda _: None)
    data = tmp_path / ("d" * 100)
    (data / "postgres" / "cluster").mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:  # pytest's path is too long
        monkeypatch.setattr("tempfile.tempdir", shared)
        server = EmbeddedPostgres(data)
        server.prepare()
        (folder,) = Path(shared).glob("millrace-*")

        (folder / "socket").touch()
        server.remove_socket_folder()
        assert folder.exists(), "a server may still use it"
        (folder / "socket").unlink()
        server.remove_socket_folder()
        server.remove_socket_folder()

        assert not folder.exists()


def test_root_without_user_namespaces_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedPostgres(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("cli.stack.services.embedded_postgres._create_owned_folder", lambda _: None)
    monkeypatch.setattr("cli.stack.services.embedded_postgres._succeeds", lambda *_: False)

    with pytest.raises(StackError, match="run as another user"):
        server.prepare()
