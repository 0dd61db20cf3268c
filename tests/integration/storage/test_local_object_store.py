"""Goal: the local store keeps its guarantees with full or failing disks and after crashes."""

import errno
import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from core.clock import SystemClock
from core.errors import Disposition, MillraceError
from results.retention.object_removal import RefusedObjects
from storage.objects.errors import (
    ObjectKeyError,
    ObjectStoreFullError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from storage.objects.local_object_store import LocalObjectStore, translate_disk_errors
from storage.objects.object_store import write_object


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_only_the_owner_reads_objects_and_older_folders_are_closed(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        (tmp_path / "objects" / ".temporary").mkdir(mode=0o777, parents=True)
        (tmp_path / "objects").chmod(0o755)
        store = LocalObjectStore(tmp_path / "objects", clock=SystemClock())
        write_object(store, "a/b/c", b"secret")
        new = LocalObjectStore(tmp_path / "new", clock=SystemClock())
        write_object(new, "a", b"secret")
    finally:
        os.umask(umask)
    modes = {path: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}


def test_a_failed_write_on_a_full_disk_leaves_no_file(
    local_store: LocalObjectStore, tmp_path: Path
) -> None:
    with local_store.begin_upload("a/b") as upload:
        with Path("/dev/full").open("wb") as full:
            os.dup2(full.fileno(), upload._file.fileno())
        with pytest.raises(ObjectStoreFullError):
            upload.write(bytes(4 * 1024 * 1024))
    assert files(tmp_path / "objects") == []


@pytest.mark.parametrize(
    ("number", "expected", "disposition"),
    [
        (errno.ENOSPC, ObjectStoreFullError, Disposition.RETRY),
        (errno.EIO, ObjectStoreUnavailableError, Disposition.RETRY),
        (errno.EACCES, ObjectStoreRefusedError, Disposition.CRASH),
        (errno.EPERM, ObjectStoreRefusedError, Disposition.CRASH),
        (errno.EROFS, ObjectStoreRefusedError, Disposition.CRASH),
    ],
)
def test_disk_errors_are_translated(
    number: int, expected: type[MillraceError], disposition: Disposition
) -> None:
    with pytest.raises(expected) as failed, translate_disk_errors():
        raise OSError(number, "failed")
    assert failed.value.disposition is disposition


def test_an_object_that_cannot_be_removed_is_retried_later(
    local_store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, "denied")

    local_store.begin_upload("a").complete()
    with monkeypatch.context() as locked:
        locked.setattr(Path, "unlink", denied)
        assert isinstance(RefusedObjects().delete(local_store, "a"), ObjectStoreRefusedError)


def _upload_and_die(root: Path) -> None:
    upload = LocalObjectStore(root, clock=SystemClock()).begin_upload("a/b")
    upload.write(bytes(4 * 1024 * 1024))
    os.kill(os.getpid(), 9)


def test_a_killed_writer_leaves_only_temporary_files(
    local_store: LocalObjectStore, tmp_path: Path
) -> None:
    root = tmp_path / "objects"
    writer = multiprocessing.get_context("spawn").Process(target=_upload_and_die, args=(root,))
    writer.start()
    writer.join(20)
    assert writer.exitcode == -9
    assert list(local_store.list("")) == []
    assert [name.split("/")[0] for name in files(root)] == [".temporary"]
    assert local_store.sweep_temporary(3600) == 0
    assert local_store.sweep_temporary(-1) == 1
    assert files(root) == []


def test_the_age_of_an_upload_counts_from_its_last_write(
    local_store: LocalObjectStore, tmp_path: Path
) -> None:
    with local_store.begin_upload("a") as upload:
        upload.write(b"x" * 2 * 1024 * 1024)  # past what is buffered
        (temporary,) = (tmp_path / "objects/.temporary").iterdir()
        long_ago = temporary.stat().st_mtime - 3600
        os.utime(temporary, (long_ago, long_ago))
        upload.write(b"x" * 2 * 1024 * 1024)
        assert local_store.sweep_temporary(1800) == 0
        os.utime(temporary, (long_ago, long_ago))
        assert local_store.sweep_temporary(1800) == 1


def test_a_key_cannot_be_a_folder_of_another(local_store: LocalObjectStore, tmp_path: Path) -> None:
    local_store.begin_upload("a").complete()
    for if_absent in (False, True):
        with pytest.raises(ObjectKeyError), local_store.begin_upload("a/b") as upload:
            upload.complete(if_absent=if_absent)
    local_store.begin_upload("c/d").complete()
    with pytest.raises(ObjectKeyError), local_store.begin_upload("c") as upload:
        upload.complete()
    assert files(tmp_path / "objects") == ["a", "c/d"]


def test_empty_folders_are_removed_with_their_last_object(
    local_store: LocalObjectStore, tmp_path: Path
) -> None:
    local_store.begin_upload("a/b/c").complete()
    local_store.begin_upload("a/d").complete()
    local_store.delete("a/b/c")
    assert not (tmp_path / "objects/a/b").exists()
    local_store.delete("a/d")
    assert sorted(path.name for path in (tmp_path / "objects").iterdir()) == [".temporary"]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, list[str]]]:
    """The folders that were made durable, each with what the store held then."""
    root, fsync = tmp_path / "objects", os.fsync
    seen: list[tuple[str, list[str]]] = []

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        seen.append((place.relative_to(root).as_posix(), files(root)))

    monkeypatch.setattr(os, "fsync", watched)
    return seen


def test_a_removal_is_durable(
    local_store: LocalObjectStore, synced: list[tuple[str, list[str]]]
) -> None:
    for key in ("a/b/c", "a/d", "a/e"):
        local_store.begin_upload(key).complete()
    synced.clear()

    local_store.delete("a/b/c")
    local_store.delete("a/d")
    local_store.delete("a/e")

    assert synced == [("a", ["a/d", "a/e"]), ("a", ["a/e"]), (".", [])]


def test_a_repeated_removal_makes_a_killed_one_durable(
    local_store: LocalObjectStore, tmp_path: Path, synced: list[tuple[str, list[str]]]
) -> None:
    for key in ("a/b", "a/c/d"):
        local_store.begin_upload(key).complete()
    (tmp_path / "objects/a/b").unlink()
    synced.clear()

    local_store.delete("a/b")
    local_store.delete("a/gone/long/ago")

    assert synced == [("a", ["a/c/d"])] * 2


def test_uploads_succeed_while_folders_are_removed(local_store: LocalObjectStore) -> None:
    """One thread empties the folder again and again in which the other creates."""
    done = threading.Event()

    def delete() -> None:
        while not done.is_set():
            local_store.delete("a/b/1")

    thread = threading.Thread(target=delete)
    thread.start()
    try:
        for _ in range(50):
            local_store.begin_upload("a/b/1").complete()
            local_store.begin_upload("a/b/2").complete(if_absent=True)
            assert local_store.size("a/b/2") == 0
            local_store.delete("a/b/2")
    finally:
        done.set()
        thread.join()
