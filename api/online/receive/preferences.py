"""How a client wants its call kept: for its connection, or for good."""

import re
from collections.abc import Mapping
from typing import Final

from api.http.responses import ApiError
from api.online.calls import ParsedCall

_WAIT: Final = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?([0-9]+)\"?(?=$|[,;\s])")


def wants_durable(parsed: ParsedCall, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a call shall outlive its connection. A stream cannot: nobody would read it."""
    if parsed.background or parsed.stream:
        return parsed.background
    return has_key(headers) or preferred_wait_s(headers) is not None


def may_be_accepted(parsed: ParsedCall, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a call may be answered by a job instead of its answer."""
    waits = preferred_wait_s(headers) is not None and not parsed.stream
    return parsed.background or waits


def has_key(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a call shall have its effect once."""
    return b"idempotency-key" in headers


def check_zero_retention(
    parsed: ParsedCall, headers: Mapping[bytes, bytes], *, zero_retention: bool
) -> None:
    """Refuse, of a tenant that retains nothing, a call whose answer would be. Raises ApiError."""
    is_kept = may_be_accepted(parsed, headers) or has_key(headers)
    if zero_retention and is_kept:
        raise ApiError(
            403,
            "This tenant retains nothing: calls in the background, with 'Prefer: wait' or with an "
            "Idempotency-Key keep their answers.",
            code="zero_retention",
        )


def preferred_wait_s(headers: Mapping[bytes, bytes]) -> float | None:
    """Return N of `Prefer: wait=N` (RFC 7240), or None; a preference may be ignored, not wrong.

    It has any number of digits, so it may be infinite; whoever waits has a bound.
    """
    found = _WAIT.search(headers.get(b"prefer", b"").lower())
    return None if found is None else float(found[1])
