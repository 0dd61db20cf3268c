"""Goal: a stopping process lets calls complete, and answers what outlasts it with an error."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from api.settings import ApiSettings
from tests.integration.api.answers import interrupted_after
from tests.integration.api.online_site import ASK, ENDPOINT, opened
from tests.integration.api.pool import good_end, say_nothing
from tests.integration.api.sites import new_site, running
from tests.integration.api.wire import connect, head, read_answer
from topics.settings import KafkaSettings

LENGTH = {"Content_Type": "application/json", "Content_Length": "100"}


def test_a_request_that_outlasts_the_grace_period_gets_an_error(
    database_url: str, tmp_path: Path
) -> None:
    settings = ApiSettings(shutdown_grace_s=1)
    with ExitStack() as stack:
        site = new_site(stack.enter_context(running(settings, database_url, tmp_path)))
        with connect(site) as connection:
            connection.sendall(head(site, "/v1/batches", Expect="100-continue", **LENGTH))
            assert connection.recv(100).startswith(b"HTTP/1.1 100")  # its route waits for the body
            stack.close()
            answer = read_answer(connection)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.headers["connection"] == "close"
    assert answer.error()["code"] == "server_restarting"


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
