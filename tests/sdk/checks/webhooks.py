"""Webhooks as their receiver verifies them with the client."""

from typing import Any

import openai

from tests.sdk.checks.batch_inputs import created_batch
from tests.sdk.checks.receiver import receiver
from tests.sdk.checks.site import Site, equal, poll


def verified_and_unwrapped(site: Site) -> None:
    hook = site.webhook
    event = site.client.webhooks.unwrap(hook["body"], _headers(hook), secret=hook["secret"])
    equal((event.type, event.object), ("batch.completed", "event"))
    site.client.webhooks.verify_signature(hook["body"], _headers(hook), secret=hook["other_secret"])


def delivered_when_a_batch_ends(site: Site) -> None:
    client = site.client
    with receiver() as (address, received):
        options = {"name": "all", "url": address, "event_types": ["batch.completed"]}
        endpoint: Any = client.post("/webhook_endpoints", body=options, cast_to=object)
        job = created_batch(site, 1)
        poll(lambda: len(received), lambda count: count > 0)
        client.delete(f"/webhook_endpoints/{endpoint['id']}", cast_to=object)
    message, secret = received[0], endpoint["signing_secret"]
    event = client.webhooks.unwrap(message.body, message.headers, secret=secret)
    assert event.type == "batch.completed"
    equal(event.data.id, job.id)
    equal(client.batches.retrieve(job.id).status, "completed")


def refused_when_changed(site: Site) -> None:
    hook = site.webhook
    try:
        site.client.webhooks.unwrap(hook["body"] + " ", _headers(hook), secret=hook["secret"])
    except openai.InvalidWebhookSignatureError:
        return
    raise AssertionError("verified")


def _headers(hook: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in hook.items() if name.startswith("webhook-")}
