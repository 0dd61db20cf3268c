"""Goal: every result arrives once and in one order, live and later, from any position."""

import json
import threading
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from api.views.progress_poller import ProgressPoller
from core.ids import new_uuid
from core.states import CloseReason
from results.retention.deletion import delete_batch
from results.views.sequenced_lines import SequencedRow, read_sequence
from storage.objects.object_store import write_object
from tenancy.api_keys import revoke_key
from tests.integration.api.answers import refused
from tests.integration.api.sites import OpenSite, Site, new_site
from tests.integration.api.views.batches import Followed, add_batch, following, lines
from tests.integration.results.outcomes import failed, outcome
from tests.support.until import until


def test_results_are_in_commit_order(site: Site, client: httpx.Client) -> None:
    batch = add_batch(site, 6)
    batch.write(outcome(4), outcome(1), failed(3))
    batch.write(outcome(1), outcome(0))  # one comes a second time
    now = lines(client.get(f"{batch.path}/results"))
    batch.close(CloseReason.EXPIRED, slice_items=3)
    whole = lines(client.get(f"{batch.path}/results"))
    rest = [lines(client.get(f"{batch.path}/results?after={n}")) for n in (0, 2, 6, 99)]
    page = lines(client.get(f"{batch.path}/results?after=1&limit=3"))

    assert [(line["custom_id"], line["sequence"]) for line in whole] == [
        (f"request-{index}", number) for number, index in enumerate([4, 1, 3, 0, 2, 5], 1)
    ]
    assert now == whole[:4]
    assert rest == [whole, whole[2:], [], []]
    assert page == whole[1:4]
    assert whole[0]["response"]["body"] == {"answer": 4}
    assert whole[2]["response"]["status_code"] == 400
    assert whole[5]["error"]["code"] == "batch_expired"


def test_a_line_is_the_files_line_with_a_sequence(site: Site, client: httpx.Client) -> None:
    batch = add_batch(site, 300)
    batch.write(*[outcome(index) for index in range(0, 300, 2)])
    batch.close()
    before = lines(client.get(f"{batch.path}/results"))
    batch.finalise()
    after = lines(client.get(f"{batch.path}/results"))
    shown = client.get(batch.path).json()
    files = [
        client.get(f"/v1/files/{shown[name]}/content").text
        for name in ("output_file_id", "error_file_id")
    ]

    assert before == after
    assert [line.pop("sequence") for line in after] == list(range(1, 301))
    written = [json.loads(line) for text in files for line in text.splitlines()]
    assert {line["id"]: line for line in after} == {line["id"]: line for line in written}


def test_a_stream_ends_when_its_batch_is_deleted(
    site: Site, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.views.view_services.PAGE_ROWS", 10)
    batch = add_batch(site, 30)
    batch.write(*[outcome(index) for index in range(30)])
    batch.close()
    batch.finalise()
    pages = 0

    def deleting(connection: sa.Connection, *given: Any, **asked: Any) -> list[SequencedRow]:
        nonlocal pages
        pages += 1
        if pages == 2:
            with site.engine.begin() as other:
                delete_batch(other, site.tenant_id, batch.job_id, key_id=new_uuid())
        return read_sequence(connection, *given, **asked)

    monkeypatch.setattr("api.views.view_services.read_sequence", deleting)
    shown = lines(client.get(f"{batch.path}/results"))

    assert [line["sequence"] for line in shown] == list(range(1, 11))


def test_large_results_are_found_before_and_after_the_end(site: Site, client: httpx.Client) -> None:
    batch = add_batch(site, 3)
    key = f"answers/{batch.job_id.hex}/1"
    write_object(site.objects, key, b'{"large":"' + b"x" * 3_000_000 + b'"}')
    batch.write(outcome(2), outcome(1, body=b"", body_key=key), outcome(0))
    before = client.get(f"{batch.path}/results")
    batch.finalise()
    site.objects.delete(key)
    after = client.get(f"{batch.path}/results")
    with following(client, f"{batch.path}/results") as events:
        live_events = [event.data for event in events if event and not event.name]

    assert [line["custom_id"] for line in lines(before)] == ["request-2", "request-1", "request-0"]
    assert len(lines(before)[1]["response"]["body"]["large"]) == 3_000_000
    assert before.content == after.content
    assert live_events == lines(after)


def test_a_stream_continues_to_the_end(site: Site) -> None:
    batch = add_batch(site, 500)
    seen: list[Followed] = []
    has_started = threading.Event()

    def subscribe() -> None:
        with site.client() as client, following(client, f"{batch.path}/results") as events:
            for event in events:
                has_started.set()
                if event is not None:
                    seen.append(event)

    thread = threading.Thread(target=subscribe)
    thread.start()
    assert has_started.wait(20)
    for first in range(0, 500, 50):
        batch.write(*[outcome(index) for index in range(first, first + 50)])
        until(lambda first=first: len(seen) >= first + 50)  # type: ignore[misc]
    batch.finalise()
    thread.join(20)
    assert not thread.is_alive()

    assert [event.id for event in seen] == list(range(1, 502))
    assert [event.data["sequence"] for event in seen[:-1]] == list(range(1, 501))
    assert seen[-1].name == "batch.completed"
    assert seen[-1].data["status"] == "completed"
    assert seen[-1].data["request_counts"] == {"total": 500, "completed": 500, "failed": 0}


@pytest.mark.parametrize("place", ["header", "query"])
def test_a_stream_continues_after_a_disconnect(
    site: Site, client: httpx.Client, place: str
) -> None:
    batch = add_batch(site, 30)
    batch.write(*[outcome(index) for index in range(30)])
    batch.finalise()
    path = f"{batch.path}/results"
    seen: list[int] = []
    for _ in range(4):
        after = seen[-1] if seen else 0
        query = f"?after={after}" if place == "query" else "?after=29"
        headers = {"last-event-id": str(after)} if place == "header" and seen else {}
        if not seen:
            query = ""
        with following(client, path + query, **headers) as events:
            results = (event for event in events if event is not None)
            for event in results:
                seen.append(event.id)
                if len(seen) % 9 == 0:
                    break
    over = client.get(path, headers={"accept": "text/event-stream", "last-event-id": "31"})

    assert seen == list(range(1, 32))
    assert (over.status_code, over.content) == (204, b"")


def test_a_job_without_results_ends_its_stream(site: Site) -> None:
    batch = add_batch(site, 1, state="failed", total_count=None)
    with site.client() as client, following(client, f"{batch.path}/results") as events:
        assert [event.name for event in events if event] == ["batch.failed"]


def test_silent_streams_send_comments(open_site: OpenSite) -> None:
    site = open_site(follow_keep_alive_s=0.1, follow_interval_s=0.02)
    batch = add_batch(site, 2)
    with site.client() as client, following(client, f"{batch.path}/results") as events:
        assert [next(events) for _ in range(4)] == [None] * 4
        batch.write(outcome(1))
        found = next(event for event in events if event is not None)
    assert found.data["custom_id"] == "request-1"


def test_a_disconnect_frees_the_slot_and_the_subscription(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[ProgressPoller] = []
    begin = ProgressPoller.__init__

    def remember(self: ProgressPoller, *given: object, **named: object) -> None:
        opened.append(self)
        begin(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ProgressPoller, "__init__", remember)
    site = open_site(followers_max=3, follow_interval_s=0.02)
    stranger = new_site(site.running)
    path, their_path = (f"{add_batch(of, 2).path}/results" for of in (site, stranger))
    stream = {"accept": "text/event-stream"}
    with site.client() as client, stranger.client() as other:
        with following(client, path) as one, following(client, path) as two:
            assert (next(one), next(two)) == (None, None)
            until(lambda: opened[0].count == 2)
            error = refused(client.get(path, headers=stream), 429)  # a place is left, for others
            assert error["code"] == "slow_down"
            assert lines(client.get(path)) == []  # what does not follow has its place
            with following(other, their_path) as theirs:
                assert next(theirs) is None
                error = refused(other.get(their_path, headers=stream), 503)
                assert error["code"] == "slow_down"
        until(lambda: opened[0].count == 0)
        until(lambda: opened[0]._polling is None or opened[0]._polling.done())
        with following(client, path) as again:
            assert next(again) is None


def test_a_revoked_key_ends_its_stream(open_site: OpenSite) -> None:
    site = open_site(key_cache_s=0.2, follow_interval_s=0.05)
    batch = add_batch(site, 2)
    with site.client() as client, following(client, f"{batch.path}/results") as events:
        assert next(events) is None
        with site.engine.begin() as connection:
            assert revoke_key(connection, site.key.key_id)
        assert list(events) == []
        batch.write(outcome(0))
