"""The access log: one line a request, with no body, query or text that a user wrote."""

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.types import Scope

_LOG: Final = logging.getLogger("api.access")

_PUBLIC_ID: Final = re.compile(r"[a-z]{1,8}[-_][0-9a-f]{32}")


def log_access(
    scope: Scope, *, method: str, route: str, status: str, facts: Mapping[str, object]
) -> None:
    """Log one request when it has ended; `facts` are its id, its key and its duration."""
    client = scope.get("client")
    fields = {
        "method": method,
        "route": route,
        "status": status,
        "address": client[0] if client else None,
        **path_ids(scope.get("path_params") or {}),
        **facts,
    }
    _LOG.info("request", extra=fields)


def path_ids(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of a path that are ids of ours; a `custom_id` is a user's text."""
    return {
        name: value
        for name, value in parameters.items()
        if isinstance(value, str) and _PUBLIC_ID.fullmatch(value)
    }
