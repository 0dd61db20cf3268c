"""Goal: targets are checked early and replaced atomically; downloads are resumed."""

import io
import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from cli.api_client import connect
from cli.batch import job_downloads
from cli.batch.job_downloads import DownloadInterruptedError, DownloadTarget, download_file
from cli.exits import ExitCode
from tests.unit.cli.scripted_server import Answer, QuietHandler, batch, listening, millrace, serving

CONTENT = bytes(range(256)) * 40
TAG = '"0a"'
ENDED = Answer(batch("completed", output_file_id="file-1").to_dict(mode="json"))
FILE = Answer({"id": "file-1", "object": "file", "bytes": len(CONTENT)})


@dataclass
class Plan:
    """The file and the faults of its server."""

    content: bytes
    cuts: list[int] = field(default_factory=list)  # bytes of each interrupted answer
    statuses: list[int] = field(default_factory=list)  # of the errors before the first answer
    is_ranged: bool = True
    shift: int = 0  # from the requested to the sent offset
    url: str = ""
    ranges: list[tuple[str | None, str | None]] = field(default_factory=list)  # range, if-range


@contextmanager
def serving_file(plan: Plan) -> Iterator[Plan]:
    """Serve the file of a plan under any id."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802  name of the base class
            if not self.path.endswith("/content"):
                shown = {"id": "file-1", "object": "file", "bytes": len(plan.content)}
                self._answer(200, "application/json", json.dumps(shown).encode())
                return
            if plan.statuses:
                self._answer(plan.statuses.pop(0), "application/json", b"{}")
                return
            requested = self.headers["range"], self.headers["if-range"]
            plan.ranges.append(requested)
            is_part = plan.is_ranged and requested[0] is not None and requested[1] == TAG
            begin = int(requested[0].removeprefix("bytes=").rstrip("-")) if is_part else 0
            begin += plan.shift if is_part else 0
            self._answer(206 if is_part else 200, "binary/any", plan.content[begin:], may_cut=True)

        def _answer(self, status: int, kind: str, body: bytes, *, may_cut: bool = False) -> None:
            self.send_response(status)
            if status == 206:
                size = len(plan.content)
                self.send_header("content-range", f"bytes {size - len(body)}-{size - 1}/{size}")
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", TAG)
            self.end_headers()
            self.wfile.write(body[: plan.cuts.pop(0)] if may_cut and plan.cuts else body)

    with listening(Handler) as plan.url:
        yield plan


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without a pause."""
    monkeypatch.setattr(job_downloads, "_PAUSE_S", 0.0)


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


def test_unused_target_is_unchanged_and_a_missing_file_is_empty(tmp_path: Path) -> None:
    target = DownloadTarget(tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == [], "kill -9 during the wait must leave no file"

    target.download(connect("http://127.0.0.1:1", "sk-1"), None)
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_device_is_written_directly_and_a_full_one_is_named() -> None:
    download(Path("/dev/null"))
    assert Path("/dev/null").is_char_device()

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
    with serving(ENDED, FILE, Answer(CONTENT)) as server:
        done = millrace(server.url, "batch", "results", "batch_1", "-q", "-o", "-")

    assert done.stdout_bytes == CONTENT
    assert list(tmp_path.iterdir()) == []


def test_job_id_goes_to_stderr_when_stdout_has_results(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"{}\n")
    answers = (FILE, ENDED, ENDED, FILE, Answer(CONTENT))
    with serving(*answers) as server:
        options = ("--endpoint", "/v1/embeddings", "-o", "-")
        done = millrace(server.url, "batch", "submit", str(source), *options)

    assert done.stdout_bytes == CONTENT
    assert done.stderr.startswith("batch_1\n")


def downloaded(plan: Plan) -> bytes:
    sink = io.BytesIO()
    download_file(connect(plan.url, "sk-1"), "file-1", sink, "out.jsonl")
    return sink.getvalue()


def test_interrupted_download_is_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_file(Plan(CONTENT, cuts=[0, 100, 5_000, 1])) as plan:
        assert downloaded(plan) == CONTENT

    written = capsys.readouterr().err
    assert written.count("\n") == 1, "one note for all interruptions"
    assert "The download was interrupted: received 0 of 10,240 bytes. Retrying for 60 s." in written
    assert plan.ranges == [
        (None, None),
        (None, None),
        ("bytes=100-", TAG),
        ("bytes=5100-", TAG),
        ("bytes=5101-", TAG),
    ]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_transient_status_is_retried(status: int) -> None:
    with serving_file(Plan(CONTENT, statuses=[status] * 4)) as plan:
        assert downloaded(plan) == CONTENT


@pytest.mark.parametrize(
    ("plan", "failure", "message"),
    [
        (Plan(CONTENT, cuts=[100]), DownloadInterruptedError, "received 100 of 10,240 bytes"),
        (Plan(CONTENT, statuses=[503]), openai.InternalServerError, "Error code: 503"),
        (Plan(CONTENT, statuses=[404]), openai.NotFoundError, "Error code: 404"),
    ],
)
def test_refused_download_or_silence_raises(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, failure: type[Exception], message: str
) -> None:
    monkeypatch.setattr(job_downloads, "UNAVAILABLE_S_MAX", -1.0)
    with serving_file(plan), pytest.raises(failure, match=message):
        downloaded(plan)


@pytest.mark.parametrize(
    "plan",
    [Plan(CONTENT, cuts=[100], is_ranged=False), Plan(CONTENT, cuts=[100], shift=256)],
    ids=["from the start", "another part"],
)
def test_response_with_another_range_is_discarded(plan: Plan) -> None:
    with serving_file(plan), pytest.raises(DownloadInterruptedError, match="100 of"):
        downloaded(plan)


def test_empty_file_needs_no_content_request() -> None:
    with serving_file(Plan(b"")) as plan:
        assert downloaded(plan) == b""

    assert plan.ranges == []
