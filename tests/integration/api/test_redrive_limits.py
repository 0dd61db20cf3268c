"""Goal: a redrive has the limits of an upload, and a refused one writes nothing."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from storage.objects.local_object_store import LocalUpload
from tests.integration.api.answers import ok, refused
from tests.integration.api.sites import OpenSite, Site, new_site
from tests.integration.api.test_dead_letters import COUNT, PATH, failed_batch, failure, job_of


def writes_of(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each write to the object store from now on."""
    sizes: list[int] = []
    begin = site.objects.begin_upload

    def begun(key: str) -> LocalUpload:
        upload = begin(key)
        write = upload.write

        def counted(data: bytes) -> None:
            sizes.append(len(data))
            write(data)

        monkeypatch.setattr(upload, "write", counted)
        return upload

    monkeypatch.setattr(site.objects, "begin_upload", begun)
    return sizes


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"completion_window": "31d"}, "completion_window"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
    ],
)
def test_a_refused_redrive_writes_nothing(
    site: Site,
    client: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, Any],
    param: str,
) -> None:
    batch = failed_batch(site, client, failure(1))
    sizes = writes_of(site, monkeypatch)
    error = refused(client.post(PATH, json={"batch": batch} | asked), 400)
    assert (error["param"], sizes) == (param, [])


@pytest.mark.parametrize(
    ("limits", "code"),
    [({"open_batches_max": 1}, "batch_limit_exceeded"), ({"files_max": 1}, "file_limit_exceeded")],
)
def test_a_redrive_above_a_quota_writes_nothing(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], code: str
) -> None:
    site = open_site(**limits)
    with site.client() as client:
        batch = failed_batch(site, client, failure(1))
        sizes = writes_of(site, monkeypatch)
        error = refused(client.post(PATH, json={"batch": batch}), 429)
    assert (error["code"], sizes) == (code, [])


@pytest.mark.parametrize(
    ("limits", "status", "code"),
    [
        ({"file_bytes_max": 50_000}, 413, "file_too_large"),
        ({"stored_bytes_max": 50_000}, 429, "storage_limit_exceeded"),
    ],
)
def test_edited_files_have_the_limits_of_an_upload(
    open_site: OpenSite,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, int],
    status: int,
    code: str,
) -> None:
    site = open_site(**limits)
    with site.client() as client:
        batch = failed_batch(site, client, *(failure(index) for index in range(COUNT)))
        before = site.stored()
        sizes = writes_of(site, monkeypatch)
        asked = {"batch": batch, "edits": {"text": "x" * 20_000}}
        error = refused(client.post(PATH, json=asked), status)
        ok(client.post(PATH, json={"batch": batch, "edits": {"text": "x"}}))
    assert error["code"] == code
    assert 20_000 < sum(sizes) < 50_000
    assert len(site.stored()) == len(before) + 1


def test_concurrent_redrives_are_limited(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_go_on = threading.Semaphore(0), threading.Event()
    begin = site.objects.begin_upload

    def begun(key: str) -> LocalUpload:
        began.release()
        assert may_go_on.wait(20)
        return begin(key)

    stranger = new_site(site.running)
    with site.client() as client, stranger.client() as other, ThreadPoolExecutor(4) as threads:
        asked, theirs = (
            {"ids": [f"dead_{job_of(failed_batch(of, asking, failure(1))).hex}_1"]}
            for of, asking in ((site, client), (stranger, other))
        )
        monkeypatch.setattr(site.objects, "begin_upload", begun)
        calls = [threads.submit(client.post, PATH, json=asked) for _ in range(2)]
        try:
            assert all(began.acquire(timeout=20) for _ in range(2))
            third = client.post(PATH, json=asked)
            calls += [threads.submit(other.post, PATH, json=theirs) for _ in range(2)]
            assert all(began.acquire(timeout=20) for _ in range(2))
            late = client.post(PATH, json=asked)
        finally:
            may_go_on.set()
        assert [call.result().status_code for call in calls] == [200] * 4
        assert refused(third, 429)["code"] == "slow_down"  # the rest is for others
        assert refused(late, 503)["code"] == "slow_down"
        ok(client.post(PATH, json=asked))
