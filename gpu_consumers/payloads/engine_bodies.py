"""Prepares request bodies for one kind of engine, just before it gets them.

An upstream gets no field that only our engine or Millrace reads, and is not asked to store the
requests of tenants that retain nothing.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from core.bodies.own_fields import OWN_FIELDS
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.payloads.cache_salts import CACHE_SALT_FIELD, prefix_cache_salts
from topics.records.records import JobRef

PrepareBody = Callable[[bytes, JobRef], bytes]
"""Returns the body for the engine of an item or call of a job."""

VLLM_FIELDS: Final = (CACHE_SALT_FIELD, "kv_transfer_params", "vllm_xargs")
"""Fields that only vLLM reads and that tell about its cache or its hosts."""

_STORE: Final = "store"
_FALSE: Final = msgspec.Raw(b"false")
_ESCAPED: Final = b"\\u00"  # a name may be written with escapes of ASCII characters


def body_preparation(settings: EngineSettings) -> PrepareBody | None:
    """Return the preparation for an engine; None if it gets bodies unchanged."""
    salts = prefix_cache_salts(settings)
    removed = None
    if settings.kind == "openai_http":
        removed = OWN_FIELDS if settings.upstream_is_vllm else (*OWN_FIELDS, *VLLM_FIELDS)

    def prepare(body: bytes, job: JobRef) -> bytes:
        if removed is not None:
            body = without_fields(body, removed, retains_nothing=bool(job.key_name))
        return body if salts is None else salts.add_salt(body, job.tenant_id)

    return None if removed is None and salts is None else prepare


def without_fields(body: bytes, removed: tuple[str, ...], *, retains_nothing: bool) -> bytes:
    """Return a JSON object without the `removed` fields; `store` is false if `retains_nothing`.

    A body that has none of them, or that the upstream will refuse, stays as it is, byte for byte.
    """
    names = (*removed, _STORE) if retains_nothing else removed
    if _ESCAPED not in body and not any(name.encode() in body for name in names):
        return body
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    if not any(name in fields for name in names):
        return body
    kept = {name: value for name, value in fields.items() if name not in removed}
    if retains_nothing and _STORE in kept:
        kept[_STORE] = _FALSE
    return msgspec.json.encode(kept)
