"""An API with online calls; the test plays its pool and the roles that read the log."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from api.online.online_runtime import OnlineDeps
from api.online.settings import OnlineSettings
from api.settings import ApiSettings
from core.errors import MillraceError
from core.outcomes import Outcome
from jobs.tables.jobs import jobs
from registry.models import add_model
from results.finaliser.request_finaliser import RequestFinaliser
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from tests.integration.api.pool import PlayedPool, answer_at_once
from tests.integration.api.sites import Site, new_site, running
from tests.integration.api.wire import connect, json_post
from topics.records.records import Chunk, ItemOutcome
from topics.settings import KafkaSettings

ENDPOINT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "org/online", "messages": []}


@dataclass(frozen=True)
class Online:
    """An API, a pool that a test plays, and the results writer in between."""

    site: Site
    pool: PlayedPool
    client: httpx.Client
    """With the key of the first tenant."""

    def call(self, fields: dict[str, Any] | None = None, /, **headers: str) -> httpx.Response:
        """Post `ASK` with other `fields`; underscores in names of headers become dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(ENDPOINT, json=ASK | (fields or {}), headers=named)

    def send(self, fields: dict[str, Any] | None = None, **headers: str) -> socket.socket:
        """Send a call as `call` does and return its connection, which the test closes."""
        body = json.dumps(ASK | (fields or {}), separators=(",", ":")).encode()
        connection = connect(self.site)
        connection.sendall(json_post(self.site, ENDPOINT, body, **headers))
        return connection

    def wait_for_predicted_wait(self, seconds: float) -> None:
        """Wait until calls would wait for so long, as the API predicts it."""
        line = f'millrace_online_predicted_wait_seconds{{pool="{self.pool.name}"}} {seconds}'
        self.pool.wait_for(lambda: line in self.client.get("/metrics").text)

    def record(self, chunk: Chunk, **fields: Any) -> None:
        """Put the outcome of a call into Postgres, as the results writer does."""
        given: dict[str, Any] = {
            "index": 0,
            "custom_id": chunk.items[0].custom_id,
            "outcome": Outcome.SUCCEEDED,
            "status_code": 200,
            "body": b'{"asked":' + chunk.items[0].body + b"}",
            "input_tokens": 3,
            "output_tokens": 2,
        }
        item = ItemOutcome(**(given | fields))
        engine = self.site.engine
        ItemWriter(engine, DayPartitions(engine)).write({chunk.job.job_id: [item]})

    def end(self) -> None:
        """End what is settled, as the finaliser does."""
        RequestFinaliser(self.site.engine, self.site.objects).run_once()

    def job_count(self) -> int:
        with self.site.engine.connect() as connection:
            own = jobs.c.tenant_id == self.site.tenant_id
            return connection.scalar(sa.select(sa.func.count()).where(own)) or 0


OpenOnline = Callable[..., Online]


@contextmanager
def opened(
    kafka: KafkaSettings,
    database_url: str,
    root: Path,
    api: dict[str, object] | None = None,
    **online: object,
) -> Iterator[Online]:
    """Run an API with the given settings of its own and of online calls, and small waits."""
    failures: list[MillraceError] = []
    settings = ApiSettings.model_validate(
        {"shutdown_grace_s": 2, "replay_wait_s": 0.2} | (api or {})
    )
    setup = OnlineDeps(OnlineSettings.model_validate(online), kafka, failures.append)
    with (
        closing(PlayedPool(kafka)) as pool,
        running(settings, database_url, root, setup=setup) as ready,
    ):
        site = new_site(ready)
        add_version(site, "7")
        with site.client() as client:
            pool.wait_for(lambda: client.get("/readyz").status_code == 200)
            pool.begin_test(site.tenant_id, site.other_tenant_id)
            yield Online(site, pool, client)
    assert failures == []


def add_version(site: Site, version: str) -> None:
    """Add a version of the model that `ASK` names."""
    with site.engine.begin() as connection:
        add_model(
            connection,
            "org/online",
            version,
            pool="small",
            engine="simulated",
            endpoints=(ENDPOINT,),
        )


@contextmanager
def for_new_tenants(online: Online) -> Iterator[Online]:
    """Give a test two new tenants of an API that several tests share."""
    site, pool = new_site(online.site.running), online.pool
    pool.begin_test(site.tenant_id, site.other_tenant_id)
    with site.client() as client:
        found = Online(site, pool, client)
        yield found
        if pool.is_away:
            pool.is_away, pool.script = False, answer_at_once
            pool.wait_for(lambda: found.call().status_code == 200)
