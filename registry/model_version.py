"""A version of a model, who may see it, and which values it may have."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final, TypeAlias
from uuid import UUID

from registry.errors import InvalidModelError

ENDPOINTS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/v1/classify",
)
"""All endpoints that an engine may serve."""

ENGINES: Final = ("vllm", "openai_http", "simulated")
VERIFICATIONS: Final = ("signed", "unverified", "legacy")
"""How far a version is known: by a signed manifest, by its engine and URL, or not at all."""

NAME_CHARS_MAX: Final = 256
_POOL: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")  # part of topic names
_TEXT: Final = re.compile(r"[!-~]{1,256}")  # visible ASCII: valid in every header and label
_NEW_NAME: Final = re.compile(
    r"[!-?A-~]{1,256}"
)  # the same without @, which stands before versions


class AnyTenant(Enum):
    """The view of an operator, who sees the private adapters of every tenant."""

    ANY = "any"


ANY_TENANT: Final = AnyTenant.ANY

TenantView: TypeAlias = UUID | AnyTenant | None
"""Who looks: a tenant, an operator, or nobody in particular, who sees what all tenants see."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """An immutable version of a model, and the pool that serves it."""

    name: str
    version: str
    pool: str
    engine: str
    endpoints: tuple[str, ...]
    created_at: datetime
    verification: str = "legacy"
    base_version: str | None = None
    """Of an adapter: the version of the model that it adapts."""

    tenant_id: UUID | None = None
    """Who alone may use it by `requested_name`: the owner of a private adapter or alias."""

    retired_at: datetime | None = None
    requested_name: str = ""
    """The text by which it was found: its name, an alias, or `name@version`."""

    def __post_init__(self) -> None:
        if not self.requested_name:
            object.__setattr__(self, "requested_name", self.name)

    @property
    def id(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"


def is_visible(tenant_id: UUID | None, view: TenantView) -> bool:
    """Whether something of `tenant_id` (None: of all tenants) is shown to `view`."""
    return tenant_id is None or view is ANY_TENANT or tenant_id == view


def check_version(
    name: str, version: str, *, pool: str, engine: str, endpoints: tuple[str, ...]
) -> None:
    """Raise InvalidModelError, which names the invalid fields."""
    is_invalid = {
        "name": not _TEXT.fullmatch(name),
        "version": not _TEXT.fullmatch(version),
        "pool": not _POOL.fullmatch(pool),
        "engine": engine not in ENGINES,
        "endpoints": not endpoints or not set(endpoints) <= set(ENDPOINTS),
    }
    fields = ", ".join(field for field, invalid in is_invalid.items() if invalid)
    if fields:
        raise InvalidModelError(f"Not valid: {fields}.", name=name)


def check_new_name(name: str) -> None:
    """Raise InvalidModelError unless the name may be given to a new model or alias."""
    if not _NEW_NAME.fullmatch(name):
        text = f"A name has 1 to {NAME_CHARS_MAX} visible ASCII characters other than @."
        raise InvalidModelError(text, name=name)
