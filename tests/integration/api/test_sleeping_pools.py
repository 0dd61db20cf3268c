"""Goal: calls for a pool at zero wait for its start or get its time, and wake it: none is lost."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import httpx
import openai
import pytest

from tests.integration.api.answers import ok, refused
from tests.integration.api.online_site import ASK, ENDPOINT, Online, OpenOnline
from tests.integration.api.pool import say_nothing
from tests.support.pool_scaling import pool_scaling
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.catalogue import BACKLOG, SCALING
from topics.records.codec import decode, encode, kind_headers, kind_of
from topics.records.kinds import KINDS
from topics.records.records import Record
from topics.records.scaling import PoolScaling, RoleLoad, WakeRequest
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

START_S = 100.0
REPEAT_S = 0.2


class PlayedAutoscaler:
    """Writes the record of the pool `small` again and again, and reads `backlog`."""

    def __init__(self, kafka: KafkaSettings) -> None:
        TopicAdmin(kafka).create((BACKLOG, SCALING))
        self.fields: dict[str, Any] = {"start_s": START_S}
        self.read: list[Record] = []
        self._stopping = threading.Event()
        self._producer = RecordProducer(kafka, client_id="autoscaler", linger_ms=0)
        self._backlog = TopicTailReader(kafka, BACKLOG, client_id="autoscaler")
        self._backlog.seek_to_end(40)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wakes(self) -> list[WakeRequest]:
        return [one for one in self.read if isinstance(one, WakeRequest)]

    def loads(self) -> list[RoleLoad]:
        return [one for one in self.read if isinstance(one, RoleLoad)]

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._producer.close()
        self._backlog.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            record = pool_scaling("small", at_s=time.time(), **self.fields)
            self._producer.send(
                SCALING.name,
                encode(record),
                partition=0,
                key=b"small",
                headers=kind_headers(PoolScaling),
            )
            for read in self._backlog.poll(REPEAT_S):
                if kind_of(read.headers) == KINDS[WakeRequest]:
                    self.read.append(decode(WakeRequest, read.value, read.headers))
                else:
                    self.read.append(decode(RoleLoad, read.value, read.headers))


@contextmanager
def autoscaled(online: Online) -> Iterator[PlayedAutoscaler]:
    """Let an autoscaler run, and the pool have no replica."""
    online.pool.is_away = True
    with closing(PlayedAutoscaler(online.pool.kafka)) as autoscaler:
        online.pool.wait_for(lambda: "being loaded" in refusal_text(online))
        online.pool.chunks.clear()  # those before the last replica was silent for 3 s
        yield autoscaler


def refusal_text(online: Online) -> str:
    """Return the answer to a call that cannot wait."""
    return online.call(X_Request_Timeout_Ms="1000").text


def read_stream(online: Online, heard: threading.Event) -> str:
    """Return the stream of a call; `heard` is set once something of it has arrived."""
    text = ""
    with online.client.stream("POST", ENDPOINT, json=ASK | {"stream": True}) as answer:
        for part in answer.iter_text():
            text += part
            heard.set()
    return text


@pytest.mark.timeout(240)
def test_calls_wait_for_a_pool_at_zero_and_are_answered_once_a_replica_comes(
    open_online: OpenOnline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.online.online_runtime._POOL_DEAD_S", 0.1)  # ends only started calls
    online = open_online(keep_alive_s=0.3, waking_calls_max=6)
    with autoscaled(online) as autoscaler, ThreadPoolExecutor(4) as threads:
        online.pool.wait_for(lambda: bool(autoscaler.wakes()))
        wake = autoscaler.wakes()[0]
        assert (wake.pool, wake.uploads, wake.calls > 0) == ("small", 0, True)

        answer = refused(online.call(X_Request_Timeout_Ms="60000"), 503)
        assert answer["code"] == "no_capacity"
        assert "in about 102 seconds" in str(answer["message"])
        assert online.call(X_Request_Timeout_Ms="60000").headers["retry-after"] == "59"
        assert online.pool.chunks == []

        # the replica reads the log later than the calls were sent, as a batcher hands them on
        script, online.pool.script = online.pool.script, lambda _pool, _chunk: None
        unary = [threads.submit(online.call) for _ in range(2)]
        heard = threading.Event()
        stream = threads.submit(read_stream, online, heard)
        online.pool.wait_for(lambda: len(online.pool.chunks) == 3)
        full = refused(online.call(), 429)  # half of the places are this tenant's
        assert full["code"] == "queue_full"
        assert all(item.attempt == 1 for chunk in online.pool.chunks for item in chunk.items)
        assert heard.wait(40)  # a comment keeps the stream alive while it waits
        assert not any([*(one.done() for one in unary), stream.done()])

        online.pool.is_away = False
        for chunk in list(online.pool.chunks):
            script(online.pool, chunk)
        for one in unary:
            ok(one.result(60))
        text = stream.result(60)
        assert text.startswith(":")
        assert text.endswith("data: [DONE]\n\n")
        online.pool.script = script
        online.pool.wait_for(lambda: online.call().status_code == 200)
        online.pool.wait_for(lambda: any(one.work_per_s > 0 for one in autoscaler.loads()))


@pytest.mark.timeout(240)
def test_an_official_client_comes_again_when_it_was_told(open_online: OpenOnline) -> None:
    online = open_online()
    with autoscaled(online) as autoscaler:
        autoscaler.fields = {"start_s": 0.5, "wake_s": 0.5}
        online.pool.wait_for(lambda: "about 2 seconds" in refusal_text(online))
        key = online.client.headers["authorization"].removeprefix("Bearer ")
        client = openai.OpenAI(base_url=f"{online.site.url}/v1", api_key=key, max_retries=1)
        sent_s, answered_s = list[float](), list[float]()

        def sending(_: httpx.Request) -> None:
            sent_s.append(time.monotonic())

        def answered(_: httpx.Response) -> None:
            answered_s.append(time.monotonic())
            online.pool.is_away = False  # a replica comes, in less time than was told

        client._client.event_hooks["request"].append(sending)
        client._client.event_hooks["response"].append(answered)
        with client:
            raw = client.chat.completions.with_raw_response.create(
                model="org/online", messages=[], extra_headers={"x-request-timeout-ms": "1000"}
            )
        assert raw.retries_taken == 1
        assert sent_s[1] - answered_s[0] >= 2.0


@pytest.mark.timeout(240)
def test_an_upload_wakes_the_pool_of_its_first_line(open_online: OpenOnline) -> None:
    online = open_online()
    with autoscaled(online) as autoscaler:
        line = f'{{"custom_id":"1","url":"{ENDPOINT}","body":{{"model":"org/online"}}}}\n'
        seen = len(autoscaler.wakes())
        boundary = "b"
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        )

        def body() -> Iterator[bytes]:
            yield head.encode() + line.encode()
            online.pool.wait_for(lambda: any(one.uploads for one in autoscaler.wakes()[seen:]))
            yield line.encode() + f"\r\n--{boundary}--\r\n".encode()

        media = {"content-type": f"multipart/form-data; boundary={boundary}"}
        file = ok(online.client.post("/v1/files", content=body(), headers=media))
        online.pool.wait_for(
            lambda: online.client.get(f"/v1/files/{file['id']}").status_code == 200
        )
        told = len(autoscaler.wakes())
        fields = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        job = ok(online.client.post("/v1/batches", json=fields))
        assert job["status"] == "validating"
        online.pool.wait_for(lambda: any(one.uploads for one in autoscaler.wakes()[told:]))


@pytest.mark.timeout(240)
def test_durable_calls_wait_and_hold_their_places(open_online: OpenOnline) -> None:
    online = open_online(waking_calls_max=4)
    with autoscaled(online):
        script, online.pool.script = online.pool.script, say_nothing
        ok(online.call({"background": True}), 202)
        patient = online.call(Prefer="wait=1", Idempotency_Key="k")
        assert patient.status_code == 202
        online.pool.wait_for(lambda: len(online.pool.chunks) == 2)
        assert refused(online.call({"background": True}), 429)["code"] == "queue_full"
        assert online.job_count() == 2  # the refused one left nothing
        again = online.call(Prefer="wait=1", Idempotency_Key="k")
        assert again.headers["idempotent-replayed"] == "true"  # a replay needs no place

        online.pool.is_away, online.pool.script = False, script
        online.pool.wait_for(lambda: online.call({"background": True}).status_code == 202)
