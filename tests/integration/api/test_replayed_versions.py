"""Goal: a replay names the model version that answered first."""

from typing import Any

import httpx
import pytest

from tests.integration.api.online_site import Online, OpenOnline, add_version
from tests.integration.api.pool import PlayedPool, answer_at_once
from tests.support.until import until, until_found
from topics.records.records import Chunk

KEPT: dict[str, dict[str, Any]] = {
    "whole": {},
    "streamed": {"stream": True},
    "in the background": {"background": True},
    "accepted": {"n": 1},  # nobody answers it while its client waits
}


def answer(online: Online, name: str) -> httpx.Response:
    wait = {"Prefer": "wait=1"} if name == "accepted" else {}
    return online.call(KEPT[name], Idempotency_Key=name, **wait)


def replay(online: Online, name: str) -> httpx.Response | None:
    """Return the answer once it is kept: a 202 that ends a wait is so a moment after it is told."""
    again = answer(online, name)
    return again if "idempotent-replayed" in again.headers else None


def versions(found: httpx.Response) -> list[str]:
    return found.headers.get_list("x-millrace-model-version")


@pytest.mark.timeout(120)
def test_a_replay_names_the_version_that_answered(open_online: OpenOnline) -> None:

    online = open_online(routes_refresh_s=0.1)

    def script(pool: PlayedPool, chunk: Chunk) -> None:
        assert chunk.job.call is not None
        if b'"n"' in chunk.items[0].body:
            return
        if chunk.job.call.durable:
            online.record(chunk)
        answer_at_once(pool, chunk)

    online.pool.script = script
    for name in KEPT:
        assert versions(answer(online, name)) == ["org/online@7"], name
    add_version(online.site, "8")
    until(lambda: versions(online.call()) == ["org/online@8"])
    for name in KEPT:
        again = until_found(lambda name=name: replay(online, name))  # type: ignore[misc]
        assert versions(again) == ["org/online@7"], name
