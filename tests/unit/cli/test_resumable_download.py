"""Goal: an interrupted download is resumed, and a failed one reports the bytes it received."""

import io

import openai
import pytest

from cli.api_client import connect
from cli.batch import job_downloads
from cli.batch.job_downloads import DownloadInterruptedError, download_file
from tests.unit.cli.ranged_server import TAG, Plan, serving_file

CONTENT = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without a pause."""
    monkeypatch.setattr(job_downloads, "_PAUSE_S", 0.0)


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


def test_refused_download_raises() -> None:
    with serving_file(Plan(CONTENT, statuses=[404])) as plan, pytest.raises(openai.NotFoundError):
        downloaded(plan)


def test_download_fails_after_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_downloads, "UNAVAILABLE_S_MAX", -1.0)
    with (
        serving_file(Plan(CONTENT, cuts=[100])) as plan,
        pytest.raises(DownloadInterruptedError, match=r"received 100 of 10,240 bytes"),
    ):
        downloaded(plan)

    with (
        serving_file(Plan(CONTENT, statuses=[503])) as plan,
        pytest.raises(openai.InternalServerError),
    ):
        downloaded(plan)


@pytest.mark.parametrize(
    ("is_ranged", "shift"), [(False, 0), (True, 256)], ids=["from the start", "another part"]
)
def test_response_with_another_range_is_discarded(is_ranged: bool, shift: int) -> None:
    with (
        serving_file(Plan(CONTENT, cuts=[100], is_ranged=is_ranged, shift=shift)) as plan,
        pytest.raises(DownloadInterruptedError, match="100 of"),
    ):
        downloaded(plan)


def test_empty_file_needs_no_content_request() -> None:
    with serving_file(Plan(b"")) as plan:
        assert downloaded(plan) == b""

    assert plan.ranges == []
