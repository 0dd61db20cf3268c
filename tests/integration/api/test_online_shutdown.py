"""Goal: a stopping process lets calls complete, and answers the others with an error."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.api.answers import interrupted_after
from tests.integration.api.online_site import ASK, ENDPOINT, opened
from tests.integration.api.pool import good_end, say_nothing
from topics.settings import KafkaSettings


@pytest.mark.timeout(300)
def test_open_calls_get_an_error_at_shutdown(
    kafka: KafkaSettings, database_url: str, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(4) as threads, ExitStack() as stack:
        online = stack.enter_context(opened(kafka, database_url, tmp_path))
        pool, client = online.pool, online.site.client()
        pool.script = say_nothing
        unary = threads.submit(client.post, ENDPOINT, json=ASK)
        pool.wait_for(lambda: len(pool.chunks) == 1)
        begun = threads.submit(client.post, ENDPOINT, json={**ASK, "stream": True})
        pool.wait_for(lambda: len(pool.chunks) == 2)
        ending = threads.submit(client.post, ENDPOINT, json=ASK)
        pool.wait_for(lambda: len(pool.chunks) == 3)
        patient = {"Prefer": "wait=60"}
        kept = threads.submit(client.post, ENDPOINT, json=ASK, headers=patient)
        pool.wait_for(lambda: len(pool.chunks) == 4)
        pool.reply(pool.chunks[1], pieces=[b'{"n":0}'])
        pool.reply(pool.chunks[2], end=good_end(b"{}"))
        assert ending.result().status_code == 200
        stack.close()

        refused = unary.result()
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_restarting"
        assert interrupted_after(begun.result().text) == ['data: {"n":0}']
        accepted = kept.result()  # it goes on: another try would be another call
        assert accepted.status_code == 202
        assert accepted.json()["id"].endswith(pool.chunks[3].job.job_id.hex)
        assert pool.aborted(pool.chunks[0].job.job_id)
        assert not pool.aborted(pool.chunks[3].job.job_id)
        assert pool.news[-1].leaving
        client.close()
