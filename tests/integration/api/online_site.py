"""An API with online calls; the test plays its pool and the roles that read the log."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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
from tests.integration.api.conftest import Site, new_site, running
from tests.integration.api.pool import PlayedPool
from topics.records.records import Chunk, ItemOutcome
from topics.settings import KafkaSettings

ENDPOINT = "/v1/chat/completions"
ASK: dict[str, object] = {"model": "org/online", "messages": []}


@dataclass(frozen=True)
class Online:
    """An API, a pool that a test plays, and the results writer in between."""

    site: Site
    pool: PlayedPool

    def client(self) -> httpx.Client:
        return self.site.client()

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
            return connection.scalar(sa.select(sa.func.count()).select_from(jobs)) or 0


@contextmanager
def opened(
    kafka: KafkaSettings,
    database_url: str,
    root: Path,
    online: OnlineSettings | None = None,
    **settings: object,
) -> Iterator[Online]:
    """Run an API with online calls and small waits."""
    failures: list[MillraceError] = []
    pool = PlayedPool(kafka)
    try:
        setup = OnlineDeps(online or OnlineSettings(), kafka, failures.append)
        api = ApiSettings.model_validate({"shutdown_grace_s": 2, "replay_wait_s": 0.2, **settings})
        with running(api, database_url, root, setup=setup) as ready:
            site = new_site(ready)
            with ready.engine.begin() as connection:
                add_model(
                    connection,
                    "org/online",
                    "7",
                    pool="small",
                    engine="simulated",
                    endpoints=(ENDPOINT,),
                )
            with site.client() as client:
                pool.wait_for(lambda: client.get("/readyz").status_code == 200)
            yield Online(site, pool)
    finally:
        pool.close()
    assert failures == []


def online_site(
    kafka: KafkaSettings, database_url: str, root: Path, **online: object
) -> AbstractContextManager[Online]:
    """Run an API with the given online settings."""
    return opened(kafka, database_url, root / "objects", OnlineSettings.model_validate(online))
