"""Headers of an online response."""

import re

from tests.sdk.checks.site import Site, equal

_PHASES = ("gateway", "queue", "batch", "execution", "postprocess")


def of_a_complete_answer(site: Site) -> None:
    raw = site.raw_chat(max_tokens=4)
    equal(raw.headers["content-type"], "application/json")
    equal(raw.headers["x-millrace-durable"], "false")
    equal(raw.headers["x-millrace-model-version"].partition("@")[0], site.chat_model)
    timing = dict(re.findall(r"(\w+);dur=([0-9.]+)", raw.headers["server-timing"]))
    equal(tuple(timing), _PHASES)
    equal(float(timing["execution"]) > 0, True)
    equal(raw.parse()._request_id, raw.headers["x-request-id"])


def of_the_rate_limit(site: Site) -> None:
    raw = site.client.embeddings.with_raw_response.create(
        model=site.embedding_model, input="how much is left"
    )
    for what in ("requests", "tokens"):
        limit = int(raw.headers[f"x-ratelimit-limit-{what}"])
        equal(0 < int(raw.headers[f"x-ratelimit-remaining-{what}"]) <= limit, True)
        equal(bool(re.fullmatch(r"(\d+m)?\d+m?s", raw.headers[f"x-ratelimit-reset-{what}"])), True)
