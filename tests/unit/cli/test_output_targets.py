"""Goal: targets are checked early and replaced atomically."""

import stat
from pathlib import Path

import pytest

from cli.api_client import connect
from cli.batch import job_downloads
from cli.batch.job_downloads import DownloadInterruptedError, DownloadTarget
from cli.exits import ExitCode
from tests.unit.cli.batches import batch
from tests.unit.cli.commands import millrace
from tests.unit.cli.ranged_server import Plan, serving_file
from tests.unit.cli.scripted_server import Answer, serving

CONTENT = b"line 1\nline 2\n"


def download(target: Path, plan: Plan | None = None) -> None:
    with serving_file(plan or Plan(CONTENT)) as plan:
        DownloadTarget(target).download(connect(plan.url, "sk-1"), "file-1")


def test_download_replaces_an_existing_file(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"old")

    download(target)

    assert target.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [target]


def test_interrupted_download_keeps_the_existing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_downloads, "UNAVAILABLE_S_MAX", -1.0)
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"old")

    with pytest.raises(DownloadInterruptedError):
        download(target, Plan(CONTENT, cuts=[4]))

    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    for mode in (0o600, 0o666):
        target = tmp_path / f"{mode:o}.jsonl"
        target.touch()
        target.chmod(mode)

        download(target)

        assert stat.S_IMODE(target.stat().st_mode) == mode
        assert target.read_bytes() == CONTENT


def test_new_file_follows_the_umask(tmp_path: Path) -> None:
    (tmp_path / "any").touch()

    download(tmp_path / "out.jsonl")

    assert (tmp_path / "out.jsonl").stat().st_mode == (tmp_path / "any").stat().st_mode


@pytest.mark.parametrize("exists", [True, False])
def test_link_remains_a_link(tmp_path: Path, exists: bool) -> None:
    folder, link = tmp_path / "folder", tmp_path / "out.jsonl"
    folder.mkdir()
    link.symlink_to(folder / "real.jsonl")
    if exists:
        link.write_bytes(b"old")

    download(link)

    assert link.is_symlink()
    assert (folder / "real.jsonl").read_bytes() == CONTENT
    assert list(folder.iterdir()) == [folder / "real.jsonl"]


def test_missing_file_id_writes_an_empty_file(tmp_path: Path) -> None:
    DownloadTarget(tmp_path / "errors.jsonl").download(connect("http://127.0.0.1:1", "sk-1"), None)

    assert (tmp_path / "errors.jsonl").read_bytes() == b""


def test_unused_target_is_unchanged(tmp_path: Path) -> None:
    DownloadTarget(tmp_path / "out.jsonl")

    assert list(tmp_path.iterdir()) == [], "kill -9 during the wait must leave no file"


def test_device_is_written_directly() -> None:
    download(Path("/dev/null"))

    assert Path("/dev/null").is_char_device()


def test_full_disk_error_names_the_target() -> None:
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        download(Path("/dev/full"))


@pytest.mark.parametrize("name", ["none/out.jsonl", "folder", "loop"])
def test_unwritable_target_fails_before_the_upload(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    source, target = tmp_path / "in.jsonl", tmp_path / name
    source.write_bytes(b"{}\n")
    with serving(Answer({})) as server:
        options = ("--endpoint", "/v1/embeddings", "-o", str(target))
        done = millrace(server.url, "batch", "submit", str(source), *options)

    assert done.exit_code == ExitCode.FAILED
    assert done.stderr.startswith(f"millrace: {target}: ")
    assert server.seen == []


def test_dash_writes_to_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = batch("completed", output_file_id="file-1").to_dict(mode="json")
    file = {"id": "file-1", "object": "file", "bytes": len(CONTENT)}
    with serving(Answer(ended), Answer(file), Answer(CONTENT)) as server:
        done = millrace(server.url, "batch", "results", "batch_1", "-q", "-o", "-")

    assert done.stdout_bytes == CONTENT
    assert list(tmp_path.iterdir()) == []


def test_job_id_goes_to_stderr_when_stdout_has_results(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"{}\n")
    ended = batch("completed", output_file_id="file-1").to_dict(mode="json")
    file = {"id": "file-1", "object": "file", "bytes": len(CONTENT)}
    answers = (Answer(file), Answer(ended), Answer(ended), Answer(file), Answer(CONTENT))
    with serving(*answers) as server:
        options = ("--endpoint", "/v1/embeddings", "-o", "-")
        done = millrace(server.url, "batch", "submit", str(source), *options)

    assert done.stdout_bytes == CONTENT
    assert done.stderr.startswith("batch_1\n")
