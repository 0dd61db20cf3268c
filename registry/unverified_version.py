"""The version of a model without files of ours: one behind an HTTP server, or a simulated one."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec


def unverified_version(engine: str, url: str, options: Mapping[str, Any]) -> str:
    """Return a digest, 64 hex digits, of what is known of such a model.

    It tells configurations apart; which weights answer is known to the operator of the URL alone.
    """
    known = {"engine": engine, "options": options, "url": url}
    return sha256(msgspec.json.Encoder(order="deterministic").encode(known)).hexdigest()
