"""Goal: an upload wakes the pool of its first line, if its tenant may use it, and no other."""

import sys
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.files.first_line import FIRST_LINE_BYTES, FirstLine
from api.files.upload_wakes import UploadWake
from api.online.send.wake_requests import UploadSpeed

LINE = b'{"custom_id":"1","body":{"model":"m"}}\n'
ME, OTHER = UUID(int=1), UUID(int=2)
BATCH = {"purpose": "batch"}


class Site:
    """An API that knows the model `m` of one tenant, on the pool `p`."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.speed = UploadSpeed(0.0)
        online: Any = SimpleNamespace(models=self, wake_requests=self)
        self.online = online

    def known_pool(self, name: str, tenant_id: UUID) -> str | None:
        return "p" if (name, tenant_id) == ("m", ME) else None

    @contextmanager
    def uploading(self, pool: str) -> Any:
        self.told.append(pool)
        yield self.speed
        self.told.append("end")

    def upload(self, *parts: bytes, tenant_id: UUID = ME, fields: Any = BATCH) -> list[bytes]:
        taken: list[bytes] = []
        with UploadWake(self.online, tenant_id) as wake:
            take = wake.passing(taken.append)
            for part in parts:
                take(part)
                wake.check(fields)
        return taken


@given(st.lists(st.integers(0, len(LINE)), max_size=5), st.sampled_from([b"", b"\n \r\n"]))
def test_the_model_is_found_wherever_the_bytes_are_split(cuts: list[int], blank: bytes) -> None:
    start = b"\xef\xbb\xbf" + blank + LINE + b"junk"
    line, places = FirstLine(), [0, *sorted(cuts), len(start)]
    for first, end in pairwise(places):
        line.feed(start[first:end])
    assert line.is_decided
    assert line.model == "m"


def test_a_long_first_line_names_no_model_and_takes_no_more_memory() -> None:
    line = FirstLine()
    for _ in range(9):
        line.feed(b"x" * (FIRST_LINE_BYTES // 8))
    assert line.is_decided
    assert line._start is None
    line.feed(b"\n" + LINE)
    assert line.model is None


def test_blank_lines_cost_no_work_for_each_and_no_memory() -> None:
    """Each blank line once copied all before it: 16 KiB of them took a second."""
    line, steps = FirstLine(), [0]

    def count(frame: Any, event: str, _: Any) -> Any:
        steps[0] += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        for _ in range(63):
            line.feed(b"\n" * (FIRST_LINE_BYTES // 64))
            assert line._start is not None
            assert not line._start
    finally:
        sys.settrace(before)
    assert steps[0] < 63 * 50
    line.feed(LINE)
    assert line.model == "m"


def test_blank_lines_beyond_the_limit_name_no_model() -> None:
    line = FirstLine()
    line.feed(b"\n" * FIRST_LINE_BYTES)
    assert line.is_decided
    assert line.model is None


def test_lines_of_another_purpose_are_not_looked_at() -> None:
    site = Site()
    with UploadWake(site.online, ME) as wake:
        take = wake.passing(lambda _: None)
        wake.check({"purpose": "assistants"})
        take(LINE)
        assert not wake._line.is_decided
        assert wake._line._start is not None
        assert not wake._line._start


def test_an_upload_is_told_from_its_first_line_to_its_end() -> None:
    site = Site()
    assert b"".join(site.upload(LINE[:9], LINE[9:], b"more\n")) == LINE + b"more\n"
    assert site.told == ["p", "end"]
    assert site.speed.received_bytes == len(b"more\n")


@pytest.mark.parametrize(
    "upload",
    [
        {"tenant_id": OTHER},
        {"fields": {"purpose": "assistants"}},
        {"fields": {}},
    ],
)
def test_other_uploads_wake_nothing(upload: dict[str, Any]) -> None:
    site = Site()
    site.upload(LINE, b"more", **upload)
    assert site.told == []


@pytest.mark.parametrize("line", [b'{"body":{"model":"n"}}\n', b"\x00\xff\n", b'{"body":[]}\n'])
def test_a_line_without_a_known_model_wakes_nothing(line: bytes) -> None:
    site = Site()
    site.upload(line, LINE)
    assert site.told == []


def test_a_purpose_after_the_file_counts_once_it_is_known() -> None:
    site = Site()
    with UploadWake(site.online, ME) as wake:
        wake.passing(lambda _: None)(LINE)
        wake.check({})
        assert site.told == []
        wake.check(BATCH)
        wake.check(BATCH)
        assert site.told == ["p"]


def test_without_online_calls_nothing_is_told() -> None:
    taken: list[bytes] = []
    with UploadWake(None, ME) as wake:
        wake.passing(taken.append)(LINE)
        wake.check(BATCH)
    assert taken == [LINE]
