"""The default pool of a model version."""

import re
from typing import Final

POOL_VERSION_DIGITS: Final = 12


def pool_name(model: str, version: str) -> str:
    """Return the default pool of a model version; it is part of topic names."""
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") or "model"
    return f"{slug[:40].rstrip('-')}-{version[:POOL_VERSION_DIGITS]}"
