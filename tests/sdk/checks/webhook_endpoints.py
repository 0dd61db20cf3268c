"""Webhook endpoints, managed through the client from release 3 on."""

from typing import Any

import openai

from tests.sdk.checks.receiver import receiver
from tests.sdk.checks.site import Site, equal, refused

CLIENT_MAJOR_MIN = 3


def created_updated_and_deleted(site: Site) -> None:
    webhooks = site.client.webhooks
    with receiver() as (address, _):
        created = webhooks.create(name="mine", url=address, event_types=["batch.completed"])
        equal((created.object, created.name, created.url), ("webhook_endpoint", "mine", address))
        equal(created.event_types, ["batch.completed"])
        equal(created.signing_secret.startswith("whsec_"), True)
        shown = webhooks.retrieve(created.id)
        equal((shown.id, shown.created_at), (created.id, created.created_at))
        equal(shown.signing_secret_hint, created.signing_secret_hint)
        equal([one.id for one in webhooks.list()], [created.id])
        equal(webhooks.update(created.id, name="ours").name, "ours")
        rotated = webhooks.rotate_secret(created.id, keep_old_secret_active_for_24_hours=True)
        equal(rotated.signing_secret == created.signing_secret, False)
        deleted = webhooks.delete(created.id)
        equal((deleted.id, deleted.deleted), (created.id, True))
        refused(openai.NotFoundError, webhooks.retrieve, webhook_endpoint_id=created.id)


def listed_in_pages(site: Site) -> None:
    webhooks = site.client.webhooks
    with receiver() as (address, _):
        options: dict[str, Any] = {"url": address, "event_types": ["batch.failed"]}
        ids = [webhooks.create(name=f"page {n}", **options).id for n in range(3)]
        listed = [one.id for one in webhooks.list(limit=2)]
        for one in ids:
            webhooks.delete(one)
    equal([one for one in listed if one in ids], ids[::-1])


def tested(site: Site) -> None:
    webhooks = site.client.webhooks
    with receiver() as (address, received):
        created = webhooks.create(name="tested", url=address, event_types=["batch.expired"])
        result = webhooks.test(created.id, event_type="batch.expired")
        webhooks.delete(created.id)
    equal((result.object, result.success), ("webhook_endpoint.test", True))
    equal((result.webhook_endpoint_id, result.status_code), (created.id, 204))
    (message,) = received
    event = webhooks.unwrap(message.body, message.headers, secret=created.signing_secret)
    equal(event.type, "batch.expired")


def event_types(site: Site) -> None:
    equal("batch.completed" in site.client.webhooks.event_types.list().data, True)


def invalid_address(site: Site) -> None:
    error = refused(
        openai.BadRequestError,
        site.client.webhooks.create,
        name="bad",
        url="ftp://127.0.0.1/",
        event_types=["batch.completed"],
    )
    equal(error.param, "url")
