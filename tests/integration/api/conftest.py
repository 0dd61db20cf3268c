"""APIs: one with small limits, one with online calls for each module, and those with settings."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from api.settings import ApiSettings
from tests.conftest import cloned_database
from tests.integration.api.online_site import Online, OpenOnline, for_new_tenants, opened
from tests.integration.api.sites import OpenSite, Running, Site, new_site, running
from topics.settings import KafkaSettings


@pytest.fixture
def kafka(kafka_bootstrap: str, topic_prefix: str) -> KafkaSettings:
    """The session's broker, with topics of this test alone."""
    return KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix)


@pytest.fixture(scope="session")
def shared(
    postgres_url: str, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """An API with small limits for every test that needs no settings of its own."""
    settings = ApiSettings(file_bytes_max=1_000_000, stored_bytes_max=5_000_000, shutdown_grace_s=2)
    with (
        cloned_database(postgres_url, migrated_template) as url,
        running(settings, url, tmp_path_factory.mktemp("objects")) as opened,
    ):
        yield opened


@pytest.fixture
def site(shared: Running) -> Site:
    """Two new tenants of the shared API."""
    return new_site(shared)


@pytest.fixture
def client(site: Site) -> Iterator[httpx.Client]:
    """A client with the key of the first tenant of `site`."""
    with site.client() as client:
        yield client


@pytest.fixture
def open_site(database_url: str, tmp_path: Path) -> Iterator[OpenSite]:
    """Start an API with the given settings; it stops with the test."""

    def start(*, url: str | None = None, **given: object) -> Site:
        settings = ApiSettings.model_validate({"shutdown_grace_s": 2, **given})
        opened = running(settings, database_url, tmp_path / uuid.uuid4().hex, api_url=url)
        return new_site(stack.enter_context(opened))

    with ExitStack() as stack:
        yield start


@pytest.fixture(scope="module")
def online_api(
    request: pytest.FixtureRequest,
    kafka_bootstrap: str,
    postgres_url: str,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Online]:
    """An API with online calls for every test of a module that needs no settings of its own.

    The module's `ONLINE`, if any, has the settings of online calls.
    """
    prefix = f"test-{uuid.uuid4().hex[:12]}."
    kafka = KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=prefix)
    settings = getattr(request.module, "ONLINE", {})
    with (
        cloned_database(postgres_url, migrated_template) as url,
        opened(kafka, url, tmp_path_factory.mktemp("o"), {"wait_s_max": 2.0}, **settings) as online,
    ):
        yield online


@pytest.fixture
def online(online_api: Online) -> Iterator[Online]:
    """Two new tenants of the module's API with online calls."""
    with for_new_tenants(online_api) as online:
        yield online


@pytest.fixture
def open_online(kafka: KafkaSettings, database_url: str, tmp_path: Path) -> Iterator[OpenOnline]:
    """Start an API with online calls and settings as for `opened`; it stops with the test."""
    with ExitStack() as stack:
        yield lambda *api, **given: stack.enter_context(
            opened(kafka, database_url, tmp_path / uuid.uuid4().hex, *api, **given)
        )
