"""One API for all tests of this folder, with online calls, webhooks and two tenants."""

import base64
import uuid
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from api.online.online_runtime import OnlineDeps
from api.online.settings import OnlineSettings
from api.settings import ApiSettings
from core.ids import KEY, TENANT, public_id
from results.webhooks.settings import WebhookSettings
from tenancy.api_keys import create_key, revoke_key
from tenancy.operator_keys import OperatorRole, create_operator_key, revoke_operator_key
from tests.conftest import cloned_database
from tests.integration.api.answers import ok
from tests.integration.api.every_route.worlds import (
    Two,
    add_models,
    add_quarantine,
    add_world,
    with_new_tenant,
)
from tests.integration.api.sites import new_site, running
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.records.catalogue import (
    CALLERS,
    CAPACITY,
    CONTROL,
    DEMAND,
    REPLIES,
    REQUESTS_INTERACTIVE,
)
from topics.settings import KafkaSettings

WEBHOOK_KEY = SecretStr(base64.b64encode(b"k" * 32).decode())


@pytest.fixture(scope="session")
def two(
    postgres_url: str,
    migrated_template: str,
    kafka_bootstrap: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Two]:
    """One whole API for all of them."""
    prefix = f"test-{uuid.uuid4().hex[:12]}."
    kafka = KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=prefix)
    TopicAdmin(kafka).create((REQUESTS_INTERACTIVE, REPLIES, CALLERS, CAPACITY, DEMAND, CONTROL))
    failures: list[Exception] = []
    with (
        cloned_database(postgres_url, migrated_template) as url,
        running(
            ApiSettings(shutdown_grace_s=2, docs=True, failed_authentications_per_minute=0),
            url,
            tmp_path_factory.mktemp("objects"),
            setup=OnlineDeps(OnlineSettings(), kafka, failures.append),
            webhooks=WebhookSettings(secret_key=WEBHOOK_KEY),
        ) as ready,
    ):
        site = new_site(ready)
        with ready.engine.begin() as connection:
            revoked = create_key(connection, site.tenant_id, "revoked")
            revoke_key(connection, revoked.key_id)
            operator, revoked_operator, reader = (
                create_operator_key(connection, name, role)
                for name, role in (
                    ("test", OperatorRole.ADMIN),
                    ("revoked", OperatorRole.ADMIN),
                    ("reader", OperatorRole.READ),
                )
            )
            revoke_operator_key(connection, revoked_operator.key_id)
        managed = with_new_tenant(site)
        owner, stranger = add_world(site, site.key), add_world(site, site.other_key)
        with (
            site.client(site.key) as one,
            site.client(site.other_key) as other,
            site.client(operator) as asking_operator,
            site.client(reader) as asking_reader,
        ):
            until(lambda: one.get("/readyz").status_code == 200)  # the ends of the log are found
            operations = ok(asking_operator.get("/v1/admin/audit_log"))["data"]
            yield Two(
                site=site,
                owner=owner,
                stranger=stranger,
                revoked=revoked,
                operator=operator,
                revoked_operator=revoked_operator,
                asking_owner=one,
                asking_stranger=other,
                asking_operator=asking_operator,
                asking_reader=asking_reader,
                operators_ids={
                    **stranger.ids,
                    **add_models(site),
                    "tenant": public_id(TENANT, managed.tenant_id),
                    "key": public_id(KEY, managed.key.key_id),
                    "operation": operations[0]["id"],
                    "quarantine": add_quarantine(site.engine, managed.tenant_id),
                },
            )
    assert failures == []
