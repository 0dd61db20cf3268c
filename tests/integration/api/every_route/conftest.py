"""One API for all tests of this folder, with online calls, webhooks and two tenants."""

import base64
import uuid
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from api.online.online_runtime import OnlineDeps
from api.online.settings import OnlineSettings
from api.settings import ApiSettings
from results.webhooks.settings import WebhookSettings
from tenancy.api_keys import create_key, revoke_key
from tests.conftest import execute, with_database
from tests.integration.api.conftest import new_site, running
from tests.integration.api.every_route.worlds import Two, add_world
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.records.catalogue import CALLERS, CAPACITY, CONTROL, REPLIES, REQUESTS_INTERACTIVE
from topics.settings import KafkaSettings

KEY = SecretStr(base64.b64encode(b"k" * 32).decode())


@pytest.fixture(scope="session")
def two(
    postgres_url: str,
    migrated_template: str,
    kafka_bootstrap: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Two]:
    """One whole API for all of them."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    execute(postgres_url, f"CREATE DATABASE {name} TEMPLATE {migrated_template}")
    kafka = KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=f"{name}.")
    TopicAdmin(kafka).create((REQUESTS_INTERACTIVE, REPLIES, CALLERS, CAPACITY, CONTROL))
    failures: list[Exception] = []
    opened = running(
        ApiSettings(shutdown_grace_s=2, docs=True),
        with_database(postgres_url, name),
        tmp_path_factory.mktemp("objects"),
        setup=OnlineDeps(OnlineSettings(), kafka, failures.append),
        webhooks=WebhookSettings(secret_key=KEY),
    )
    with opened as ready:
        site = new_site(ready)
        with ready.engine.begin() as connection:
            revoked = create_key(connection, site.tenant_id, "revoked")
            revoke_key(connection, revoked.key_id)
        owner, stranger = add_world(site, site.key), add_world(site, site.other_key)
        with site.client(site.key) as one, site.client(site.other_key) as other:
            until(lambda: one.get("/readyz").status_code == 200)  # the ends of the log are found
            yield Two(site, owner, stranger, revoked, one, other)
    execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")
    assert failures == []
