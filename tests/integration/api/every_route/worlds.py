"""Two tenants that have one object of each kind, and ids that never existed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

import httpx
import sqlalchemy as sa

from core.ids import (
    EVENT,
    FILE,
    JOB,
    KEY,
    QUARANTINE,
    SINGLE,
    TENANT,
    new_uuid,
    parse_public_id,
    public_id,
)
from jobs.tables.jobs import jobs
from jobs.tables.quarantines import tenant_quarantines
from migrations.schema import SCHEMA
from registry.store.aliases import set_alias
from results.webhooks.endpoints.endpoints import ENDPOINT
from results.webhooks.events.message_recording import find_subscriptions, record_messages
from results.webhooks.events.messages import job_message
from tenancy.api_keys import create_key
from tenancy.audit_log import ENTRY
from tenancy.key_secrets import NewKey
from tenancy.tables import api_keys
from tenancy.tenants import create_tenant
from tests.integration.api.answers import batch_body, file_id, ok
from tests.integration.api.sites import Site
from tests.integration.api.views.batches import add_batch
from tests.integration.jobs.rows import add_job
from tests.integration.results.outcomes import failed, outcome
from tests.support.registered_models import ModelSigner

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"model":"org/small"}}\n'
CALLBACK = "https://8.8.8.8/done"
ALIAS = "org/alias"


@dataclass(frozen=True)
class World:
    """A tenant, its key, and the ids of what it has, by name."""

    key: NewKey
    ids: Mapping[str, str]


@dataclass(frozen=True)
class Two:
    """An API, who owns things in it, and who does not but has things of the same kinds."""

    site: Site
    owner: World
    stranger: World
    revoked: NewKey  # of the owner
    operator: NewKey  # with the role admin
    revoked_operator: NewKey
    asking_owner: httpx.Client
    asking_stranger: httpx.Client
    asking_operator: httpx.Client
    asking_reader: httpx.Client  # an operator who may only read
    operators_ids: Mapping[str, str]  # what an operator may name and change

    def asker(self, path: str) -> World:
        """Return whose ids stand in a path, like `asking`."""
        is_for_operators = path.startswith("/v1/admin/")
        return World(self.operator, self.operators_ids) if is_for_operators else self.stranger

    def asking(self, path: str) -> httpx.Client:
        """Return who may ask for a path: an operator, or the stranger."""
        return self.asking_operator if path.startswith("/v1/admin/") else self.asking_stranger


def with_new_tenant(site: Site) -> Site:
    """Return the site for a new tenant, from which no other test takes anything."""
    with site.engine.begin() as connection:
        tenant_id = create_tenant(connection, uuid4().hex)
        key = create_key(connection, tenant_id, "test")
    return replace(site, tenant_id=tenant_id, key=key)


def add_world(site: Site, key: NewKey) -> World:
    """Give the tenant of `key` one of everything."""
    site = replace(site, key=key, tenant_id=_tenant_of(site, key))
    batch = add_batch(site, 2, sealed=False, total_final=False)
    batch.write(outcome(0), failed(1))
    ended = add_batch(site, 1)
    ended.write(outcome(0))
    ended.finalise()
    output: UUID = ended.row.output_file_id
    with site.client() as client:
        called = _ask(
            client, "/v1/batches", batch_body(file_id(client, LINE), callback_url=CALLBACK)
        )
        endpoint = _ask(
            client,
            "/v1/webhook_endpoints",
            {"name": "mine", "url": "https://8.8.8.8/hook", "event_types": ["batch.completed"]},
        )
        callback = ok(client.get(f"/v1/batches/{called}/callback"))["id"]
        file = file_id(client, LINE)
    return World(
        key,
        {
            "file": file,
            "output": public_id(FILE, output),
            "batch": batch.id,
            "ended": ended.id,
            "called": called,
            "item": batch.item_id(1),
            "letter": f"dead_{batch.job_id.hex}_1",
            "job": _single_request(site),
            "endpoint": endpoint,
            "callback": callback,
            "message": _message(site),
            "entry": _entry(site),
            "tenant": public_id(TENANT, site.tenant_id),
            "key": public_id(KEY, key.key_id),
        },
    )


def add_models(site: Site) -> dict[str, str]:
    """Register two versions of a signed model, the older one unused, and an alias; return ids.

    The object store never has their files: stored files are shared by digest, so the content is
    that of no other test.
    """
    signer, content = ModelSigner(), uuid4().hex
    with site.engine.begin() as connection:
        signer.trust(connection)
        old = signer.register(connection, "org/signed", f"old {content}")
        signer.register(connection, "org/signed", f"new {content}")
        set_alias(connection, ALIAS, "org/signed")
    return {"version": old.id, "alias": ALIAS, "model_key": signer.key_id}


def add_quarantine(engine: sa.Engine, tenant_id: UUID) -> str:
    """Put a tenant into quarantine on a pool; return its id."""
    quarantine_id, hour = new_uuid(), sa.text("now() + interval '1 h'")
    with engine.begin() as connection:
        connection.execute(
            tenant_quarantines.insert().values(
                id=quarantine_id, tenant_id=tenant_id, pool="p", job_id=new_uuid(), ends_at=hour
            )
        )
    return public_id(QUARANTINE, quarantine_id)


def own_path(path: str, asker: World) -> str:
    """Return a route's path with ids of the asker, so that the route gets as far as it can."""
    names = {"batch_id": "batch", "endpoint_id": "endpoint", "letter_id": "letter"}
    names |= {"file_id": "file", "job_id": "job", "custom_id": "item"}
    for parameter, name in names.items():
        path = path.replace(f"{{{parameter}}}", asker.ids[name])
    path = path.replace("{tenant_id}", asker.ids["tenant"]).replace("{key_id}", asker.ids["key"])
    path = path.replace("{quarantine_id}", asker.ids.get("quarantine", ""))
    return path.replace("{name}", "org/small").replace("{alias}", ALIAS)


def never_existed() -> dict[str, str]:
    """Return well-formed ids of nothing."""
    names = {
        "file": FILE,
        "output": FILE,
        "batch": JOB,
        "ended": JOB,
        "called": JOB,
        "job": SINGLE,
        "endpoint": ENDPOINT,
        "callback": ENDPOINT,
        "message": EVENT,
        "entry": ENTRY,
        "operation": ENTRY,
        "tenant": TENANT,
        "key": KEY,
        "quarantine": QUARANTINE,
    }
    nothing = f"org/nothing@{new_uuid().hex * 2}"
    ids = {name: public_id(prefix, new_uuid()) for name, prefix in names.items()}
    return ids | {
        "version": nothing,
        "alias": f"org/{new_uuid().hex}",
        "model_key": new_uuid().hex * 2,
        "item": f"batch_req_{new_uuid().hex}{1:08x}",
        "letter": f"dead_{new_uuid().hex}_1",
    }


def everything(engine: sa.Engine) -> list[tuple[str, str]]:
    """Return all rows of all tables as text."""
    rows = [f"SELECT '{t.name}', t::text FROM {t.name} t" for t in SCHEMA.sorted_tables]
    with engine.connect() as connection:
        found = connection.execute(sa.text(" UNION ALL ".join(rows)))
        return sorted((name, text) for name, text in found)


def _ask(client: httpx.Client, path: str, body: dict[str, object]) -> str:
    return str(ok(client.post(path, json=body))["id"])


def _tenant_of(site: Site, key: NewKey) -> UUID:
    with site.engine.connect() as connection:
        query = sa.select(api_keys.c.tenant_id).where(api_keys.c.id == key.key_id)
        tenant_id: UUID = connection.scalars(query).one()
    return tenant_id


def _single_request(site: Site) -> str:
    columns = {"model": "org/small", "model_version": "1", "pool": "small", "total_count": 1}
    columns |= {"kind": "request", "state": "in_progress", "input_file_id": None}
    with site.engine.begin() as connection:
        job_id = add_job(connection, site.tenant_id, **columns)
    return public_id(SINGLE, job_id)


def _entry(site: Site) -> str:
    """Return a row of the tenant's audit log; making a world has left some."""
    with site.client() as client:
        return str(ok(client.get("/v1/audit_log"))["data"][0]["id"])


def _message(site: Site) -> str:
    """Record a message for the tenant's endpoint."""
    with site.engine.begin() as connection:
        now_s = float(connection.scalar(sa.text("SELECT extract(epoch FROM now())")) or 0)
        job_id = connection.scalars(
            sa.select(jobs.c.id).where(jobs.c.tenant_id == site.tenant_id).limit(1)
        ).one()
        message = job_message((new_uuid(), "batch.completed"), site.tenant_id, job_id, now_s)
        assert record_messages(
            connection, [message], find_subscriptions(connection, [site.tenant_id], [])
        )
    found = public_id(EVENT, message.message_id)
    assert parse_public_id(EVENT, found)
    return found
