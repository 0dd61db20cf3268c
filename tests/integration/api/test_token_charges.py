"""Goal: charged tokens that a call did not use are refunded."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.api.online_site import ASK, ENDPOINT, Online, online_site
from tests.integration.api.pool import answer_at_once, say_nothing
from topics.settings import KafkaSettings

LARGE = ASK | {"max_tokens": 900}
TOKENS_PER_MINUTE = 1000
"""Room for one large call: what is kept of it would refuse the next one for most of a minute."""


@pytest.fixture
def online(kafka: KafkaSettings, database_url: str, tmp_path: Path) -> Iterator[Online]:
    given = {"tokens_per_minute": TOKENS_PER_MINUTE}
    with online_site(kafka, database_url, tmp_path, **given) as opened:
        yield opened


def unknown_model(client: httpx.Client) -> httpx.Response:
    return client.post(ENDPOINT, json=LARGE | {"model": "nobody"})


def key_of_another_call(client: httpx.Client) -> httpx.Response:
    headers = {"idempotency-key": "k"}
    small = client.post(ENDPOINT, json=ASK | {"max_tokens": 1}, headers=headers)
    assert small.status_code == 200
    return client.post(ENDPOINT, json=LARGE, headers=headers)


def stream_in_the_background(client: httpx.Client) -> httpx.Response:
    return client.post(ENDPOINT, json=LARGE | {"stream": True, "background": True})


@pytest.mark.parametrize(
    ("refused", "status"),
    [(unknown_model, 404), (key_of_another_call, 422), (stream_in_the_background, 400)],
)
def test_a_refused_call_is_not_charged(
    online: Online, refused: Callable[[httpx.Client], httpx.Response], status: int
) -> None:
    with online.client() as client:
        assert refused(client).status_code == status
        assert client.post(ENDPOINT, json=LARGE).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_without_a_reply_by_its_deadline_is_not_charged(
    online: Online, stream: bool
) -> None:
    online.pool.script = say_nothing
    headers = {"x-request-timeout-ms": "200"}
    with online.client() as client:
        late = client.post(ENDPOINT, json=LARGE | {"stream": stream}, headers=headers)
        assert late.status_code == 504
        online.pool.script = answer_at_once
        assert client.post(ENDPOINT, json=LARGE).status_code == 200


def test_an_abandoned_stream_is_charged_the_pieces_received(online: Online) -> None:
    online.pool.script = lambda pool, chunk: pool.reply(chunk, pieces=[b'{"n":0}'])
    with online.client() as client:
        with client.stream("POST", ENDPOINT, json=LARGE | {"stream": True}) as answer:
            pieces = answer.iter_raw()  # held: one that is dropped closes the connection
            assert next(pieces) == b'data: {"n":0}\n\n'
        chunk = online.pool.only_chunk()
        online.pool.wait_for(lambda: online.pool.aborted(chunk.job.job_id))
        online.pool.script = answer_at_once
        assert client.post(ENDPOINT, json=LARGE).status_code == 200


def test_a_call_that_continues_without_its_client_keeps_its_estimate(online: Online) -> None:
    with online.client() as client:
        assert client.post(ENDPOINT, json=LARGE | {"background": True}).status_code == 202
        assert client.post(ENDPOINT, json=LARGE).status_code == 429
