"""Goal: a replay names the model version that answered first."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from api.online.settings import OnlineSettings
from registry.models import add_model
from tests.integration.api.online_site import ASK, ENDPOINT, Online, opened
from tests.integration.api.pool import PlayedPool, answer_at_once
from tests.support.until import until, until_found
from topics.records.records import Chunk
from topics.settings import KafkaSettings

KEPT: dict[str, dict[str, Any]] = {
    "whole": ASK,
    "streamed": ASK | {"stream": True},
    "in the background": ASK | {"background": True},
    "accepted": ASK | {"n": 1},  # nobody answers it while its client waits
}


def answer(client: httpx.Client, name: str) -> httpx.Response:
    wait = {"prefer": "wait=1"} if name == "accepted" else {}
    return client.post(ENDPOINT, json=KEPT[name], headers={"idempotency-key": name, **wait})


def replay(client: httpx.Client, name: str) -> httpx.Response | None:
    """Return the answer once it is kept: a 202 that ends a wait is so a moment after it is told."""
    again = answer(client, name)
    return again if "idempotent-replayed" in again.headers else None


def versions(found: httpx.Response) -> list[str]:
    return found.headers.get_list("x-millrace-model-version")


def add_version(durable: Online, version: str) -> None:
    with durable.site.engine.begin() as connection:
        add_model(
            connection,
            "org/online",
            version,
            pool="small",
            engine="simulated",
            endpoints=(ENDPOINT,),
        )


@pytest.mark.timeout(120)
def test_a_replay_names_the_version_that_answered(
    kafka: KafkaSettings, database_url: str, tmp_path: Path
) -> None:
    settings = OnlineSettings(routes_refresh_s=0.1)
    with opened(kafka, database_url, tmp_path, settings) as durable:

        def script(pool: PlayedPool, chunk: Chunk) -> None:
            assert chunk.job.call is not None
            if b'"n"' in chunk.items[0].body:
                return
            if chunk.job.call.durable:
                durable.record(chunk)
            answer_at_once(pool, chunk)

        durable.pool.script = script
        with durable.site.client() as client:
            for name in KEPT:
                assert versions(answer(client, name)) == ["org/online@7"], name
            add_version(durable, "8")
            until(lambda: versions(client.post(ENDPOINT, json=ASK)) == ["org/online@8"])
            for name in KEPT:
                again = until_found(lambda name=name: replay(client, name))  # type: ignore[misc]
                assert versions(again) == ["org/online@7"], name
