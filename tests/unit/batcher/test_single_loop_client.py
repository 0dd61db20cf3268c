"""Goal: the client on the app's loop calls directly, is paced, and is only used for interactive."""

import asyncio
from pathlib import Path

import pytest
from faust.transport.drivers import aiokafka as driver

from batcher.faust_app.request_stream import build_app
from batcher.faust_app.single_loop_client import SingleLoopClient, with_fetch_gap
from batcher.settings import BatcherSettings
from topics.settings import KafkaSettings

KAFKA = KafkaSettings(bootstrap_servers="one:9092")


class Fetches:
    """Answers that come at set times."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.now_s = 100.0
        self.asked_s: list[float] = []

    async def fetch(self) -> bool:
        self.asked_s.append(self.now_s)
        return self.answers.pop(0)


async def test_next_fetch_waits_only_after_a_response_with_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetches = Fetches(False, True, True, False)

    async def sleep(seconds: float) -> None:
        fetches.now_s += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    fetch = with_fetch_gap(fetches.fetch, gap_s=0.25, now_s=lambda: fetches.now_s)
    assert [await fetch() for _ in range(2)] == [False, True]
    assert fetches.asked_s == [100.0, 100.0]
    await fetch()
    fetches.now_s += 5.0
    await fetch()
    assert fetches.asked_s[2:] == [100.25, 105.25]


@pytest.mark.parametrize("job_class", ["interactive", "bulk"])
async def test_only_interactive_runs_on_the_apps_loop(tmp_path: Path, job_class: str) -> None:
    settings = BatcherSettings.model_validate({"job_class": job_class})
    app = build_app(KAFKA, settings, tmp_path)
    assert (app.transport.Consumer is not driver.Consumer) is (job_class == "interactive")


async def test_client_calls_run_directly(tmp_path: Path) -> None:
    app = build_app(KAFKA, BatcherSettings(job_class="interactive"), tmp_path)
    client = app.consumer._thread
    assert isinstance(client, SingleLoopClient)

    async def doubled(number: int) -> int:
        return 2 * number

    assert await client.call_thread(doubled, 21) == 42
    assert await client.call_thread(max, 1, 2) == 2
