"""What a client prefers: whether its call outlives the connection, and how long it waits."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from api.http.responses import ApiError
from api.online.calls import ParsedCall
from api.online.receive.exchange import ReceivedCall

QUEUE_TIMEOUT_HEADER: Final = b"x-request-queue-timeout-ms"

_WAIT: Final = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?([0-9]+)\"?(?=$|[,;\s])")


def wants_durable(parsed: ParsedCall, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the call outlives its connection. A stream cannot: it would have no reader."""
    if parsed.background or parsed.stream:
        return parsed.background
    return has_idempotency_key(headers) or preferred_wait_s(headers) is not None


def may_be_accepted(parsed: ParsedCall, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the response may be a 202 that refers to a job."""
    waits = preferred_wait_s(headers) is not None and not parsed.stream
    return parsed.background or waits


def has_idempotency_key(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the call has an idempotency key."""
    return b"idempotency-key" in headers


def check_zero_retention(received: ReceivedCall) -> None:
    """Refuse a call whose response would be stored for a tenant with zero retention.

    Raises ApiError (403).
    """
    headers = received.exchange.headers
    is_stored = may_be_accepted(received.parsed, headers) or has_idempotency_key(headers)
    if received.principal.zero_retention and is_stored:
        raise ApiError(
            403,
            "This tenant has zero retention. Send the call without 'background', 'Prefer: wait' "
            "and Idempotency-Key: their answers are stored.",
            code="zero_retention",
        )


def preferred_wait_s(headers: Mapping[bytes, bytes]) -> float | None:
    """Return N of `Prefer: wait=N` (RFC 7240), or None; a malformed preference is ignored.

    N has any number of digits, so it may be infinite. Callers apply a limit.
    """
    found = _WAIT.search(headers.get(b"prefer", b"").lower())
    return None if found is None else float(found[1])


def with_default_wait(received: ReceivedCall, waits_s: Mapping[str, float]) -> ReceivedCall:
    """Return the call with its endpoint's default wait, if the client sent no preference.

    A call that limits its time in the queue waits for its reply instead. The default does not
    apply to a tenant with zero retention, whose replies cannot be stored for later.
    """
    exchange, parsed = received.exchange, received.parsed
    wait_s = waits_s.get(parsed.endpoint)
    if wait_s is None:
        return received
    limits_queue = parsed.queue_timeout_s is not None or QUEUE_TIMEOUT_HEADER in exchange.headers
    is_fixed = (
        parsed.stream or parsed.background or received.principal.zero_retention or limits_queue
    )
    if is_fixed or preferred_wait_s(exchange.headers) is not None:
        return received
    preferred = [exchange.headers.get(b"prefer", b""), b"wait=%d" % round(wait_s)]
    prefer = b", ".join(filter(None, preferred))
    exchange = replace(exchange, headers={**exchange.headers, b"prefer": prefer})
    return replace(received, exchange=exchange)
