"""Goal: a spot notice is found, its time is read, and nonsense does no harm."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import SettingsError
from gpu_consumers.settings import ReplicaSettings
from gpu_consumers.spot.notice_source import (
    POLL_S,
    read_file_notice,
    read_url_notice,
    watch_notice,
)
from gpu_consumers.spot.spot_notice import (
    NOTICE_S,
    NOTICE_S_MAX,
    REQUEUE_S,
    drain_grace_s,
    leaves_at_s,
)
from tests.support.clock import ManualClock

NOW_S = 1_505_722_800.0  # 2017-09-18T08:20:00Z
AWS = b'{"action":"terminate","time":"2017-09-18T08:22:00Z"}'


@pytest.mark.parametrize(
    ("body", "in_s"),
    [
        (AWS, 120.0),
        (b"2017-09-18T10:21:00+02:00\n", 60.0),
        (b"2017-09-18T08:20:40.5", 40.5),
        (b"", NOTICE_S),
        (b"TRUE", NOTICE_S),
        (b"2017-13-45T08:22:00Z", NOTICE_S),
        (b"\xff\xfe", NOTICE_S),
        (b"2017-09-18T08:00:00Z", 0.0),
        (b"2999-01-01T00:00:00Z", NOTICE_S_MAX),
    ],
)
def test_the_time_of_a_notice(body: bytes, in_s: float) -> None:
    assert leaves_at_s(body, now_s=NOW_S) == pytest.approx(NOW_S + in_s)


@given(st.binary(max_size=200))
def test_any_body_gives_a_time_within_bounds(body: bytes) -> None:
    assert NOW_S <= leaves_at_s(body, now_s=NOW_S) <= NOW_S + NOTICE_S_MAX


def test_the_grace_of_a_drain_leaves_time_to_requeue() -> None:
    assert drain_grace_s(0.0, now_s=NOW_S, shutdown_grace_s=8.0) == 8.0
    assert drain_grace_s(NOW_S + 120, now_s=NOW_S, shutdown_grace_s=8.0) == 120 - REQUEUE_S
    assert drain_grace_s(NOW_S + 2, now_s=NOW_S, shutdown_grace_s=8.0) == 0.0
    assert drain_grace_s(NOW_S * 9, now_s=NOW_S, shutdown_grace_s=8.0) == NOTICE_S_MAX


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/spot/instance-action",
        "http://127.0.0.1:8080/notice",
        "http://[::1]/notice",
        "http://[fe80::a9fe:a9fe]/notice",
        "http://localhost/notice",
    ],
)
def test_a_metadata_server_of_this_host_may_be_asked(url: str) -> None:
    settings = {"MILLRACE_GPU_POOL": "p", "MILLRACE_GPU_NOTICE_URL": url}
    assert ReplicaSettings.from_env(settings).notice_url == url


@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254/",
        "http://10.0.0.1/",
        "http://metadata.example/",
        "http://user:secret@127.0.0.1/",
        "file:///etc/passwd",
        "http://127.0.0.1:99999/",
        "http://",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        ReplicaSettings.from_env({"MILLRACE_GPU_POOL": "p", "MILLRACE_GPU_NOTICE_URL": url})


async def test_a_file_that_appears_is_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    assert await read_file_notice(path) is None
    path.write_bytes(b"")
    assert await read_file_notice(path) == b""
    path.write_bytes(AWS)
    assert await read_file_notice(path) == AWS
    assert await read_file_notice(tmp_path) is None  # a folder cannot be read


@contextmanager
def server(status: int, body: bytes) -> Iterator[str]:
    """Serve one answer for every path on a loopback address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{httpd.server_port}/notice"
        finally:
            httpd.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "expected"), [(200, AWS), (404, None), (302, None)])
async def test_only_an_answer_200_is_a_notice(status: int, expected: bytes | None) -> None:
    with server(status, AWS) as url:
        assert await read_url_notice(url) == expected
    assert await read_url_notice(url) is None  # nobody listens


async def test_a_notice_is_reported_once_with_its_time() -> None:
    clock, reported, looks = ManualClock(NOW_S), list[float](), list[float]()

    async def read() -> bytes | None:
        looks.append(clock.now_s - NOW_S)
        return AWS if len(looks) == 3 else None

    await watch_notice(
        [read], reported.append, clock=clock, stop=threading.Event(), sleep=clock.sleep
    )
    assert looks == [0.0, POLL_S, 2 * POLL_S]
    assert reported == [NOW_S + 120]


async def test_nobody_looks_for_a_notice_once_the_replica_stops() -> None:
    stop, clock, reported = threading.Event(), ManualClock(), list[float]()

    async def read() -> bytes | None:
        stop.set()
        return None

    await watch_notice([read], reported.append, clock=clock, stop=stop, sleep=clock.sleep)
    assert reported == []
