"""Webhooks as their receiver verifies them with the client."""

import openai

from tests.sdk.checks.site import Site, equal


def verified_and_unwrapped(site: Site) -> None:
    hook = site.webhook
    event = site.client.webhooks.unwrap(hook["body"], _headers(hook), secret=hook["secret"])
    equal((event.type, event.object), ("batch.completed", "event"))
    site.client.webhooks.verify_signature(hook["body"], _headers(hook), secret=hook["other_secret"])


def refused_when_changed(site: Site) -> None:
    hook = site.webhook
    try:
        site.client.webhooks.unwrap(hook["body"] + " ", _headers(hook), secret=hook["secret"])
    except openai.InvalidWebhookSignatureError:
        return
    raise AssertionError("verified")


def _headers(hook: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in hook.items() if name.startswith("webhook-")}
