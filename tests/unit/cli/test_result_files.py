"""Goal: a fetched file is whole or not there, and what is no regular file is never replaced."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.result_files import DownloadCutError, save_file
from cli.uploading import input_to_upload


def client_with(content: bytes, size_bytes: int | None = None) -> Any:
    """Return what `save_file` uses of the client, holding one file."""

    @contextmanager
    def stream(_file_id: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(iter_bytes=lambda _size: iter([content[:3], content[3:]]))

    size = len(content) if size_bytes is None else size_bytes
    files = SimpleNamespace(
        retrieve=lambda _file_id: SimpleNamespace(bytes=size),
        with_streaming_response=SimpleNamespace(content=stream),
    )
    return SimpleNamespace(files=files)


def test_a_file_replaces_an_older_one(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"old")

    save_file(client_with(b"line 1\nline 2\n"), "file-1", target)

    assert target.read_bytes() == b"line 1\nline 2\n"
    assert list(tmp_path.iterdir()) == [target]


def test_a_cut_download_leaves_the_older_file(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"old")

    with pytest.raises(DownloadCutError):
        save_file(client_with(b"line", size_bytes=100), "file-1", target)

    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_no_file_is_an_empty_one(tmp_path: Path) -> None:
    save_file(client_with(b""), None, tmp_path / "errors.jsonl")

    assert (tmp_path / "errors.jsonl").read_bytes() == b""


def test_a_device_is_written_to_and_stays() -> None:
    save_file(client_with(b"line"), "file-1", Path("/dev/null"))

    assert Path("/dev/null").is_char_device()


def test_an_upload_can_be_read_twice(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"{}\n")

    with input_to_upload(str(tmp_path / "in.jsonl")) as file:
        first = file.read()
        file.seek(0)
        assert (first, file.read()) == (b"{}\n", b"{}\n")
