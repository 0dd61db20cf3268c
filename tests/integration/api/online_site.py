"""An API with online calls and a played pool behind it."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from api.online.online_runtime import OnlineDeps
from api.online.settings import OnlineSettings
from api.settings import ApiSettings
from core.errors import MillraceError
from registry.models import add_model
from tests.integration.api.conftest import Site, new_site, running
from tests.integration.api.pool import PlayedPool
from topics.settings import KafkaSettings

ENDPOINT = "/v1/chat/completions"
ASK: dict[str, object] = {"model": "org/online", "messages": []}


@dataclass(frozen=True)
class Online:
    """An API with a pool behind it."""

    site: Site
    pool: PlayedPool

    def client(self) -> httpx.Client:
        return self.site.client()


@contextmanager
def online_site(
    kafka: KafkaSettings, database_url: str, root: Path, **given: object
) -> Iterator[Online]:
    """Start an API with the given online settings; it ends well, or the test fails."""
    failures: list[MillraceError] = []
    pool = PlayedPool(kafka)
    try:
        setup = OnlineDeps(OnlineSettings.model_validate(given), kafka, failures.append)
        api = ApiSettings(shutdown_grace_s=2)
        with running(api, database_url, root / uuid.uuid4().hex, setup=setup) as ready:
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
