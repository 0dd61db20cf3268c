"""Salts request bodies, so that no tenant reuses the prefix cache of another in vLLM.

vLLM hashes the field `cache_salt` into the first block of a prompt: only requests with equal salts
reuse each other's KV cache. Without it, `cached_tokens` and the time to the first token tell a
tenant which prompts others have sent. Source: vLLM, Automatic Prefix Caching, "Cache Isolation for
Security".
"""

import base64
import hmac
import secrets
from collections.abc import Mapping
from typing import Final
from uuid import UUID

import msgspec

from core.secret_keys import KEY_BYTES, decoded_keys
from gpu_consumers.engines.settings import EngineSettings

CACHE_SALT_FIELD: Final = "cache_salt"
_OWN_SALT_CHARS_MAX: Final = 128  # vLLM's limit
_FORBIDDEN_CHARS: Final = frozenset("@/\\\0")  # in vLLM's salts
_NAME: Final = CACHE_SALT_FIELD.encode()
_SALTS_MAX: Final = 10_000
_WHITESPACE: Final = b" \t\r\n"  # of JSON
_ESCAPED: Final = b"\\u00"  # a name may be written with escapes of ASCII characters


class PrefixCacheSalts:
    """The salts of all tenants, under one key."""

    def __init__(self, key: bytes, groups: Mapping[UUID, str]) -> None:
        """`key` makes salts unguessable; `groups` names the group of each tenant that shares."""
        self._key = key
        self._groups = groups
        self._salts: dict[UUID, str] = {}  # of tenants; a digest costs as much as the rest

    def salt(self, tenant_id: UUID, own: str = "") -> str:
        """Return the salt of a tenant, or of its group, combined with the request's `own` salt."""
        if own:
            return self._digest(tenant_id, own)
        if tenant_id not in self._salts:
            if len(self._salts) >= _SALTS_MAX:
                self._salts.clear()
            self._salts[tenant_id] = self._digest(tenant_id, "")
        return self._salts[tenant_id]

    def _digest(self, tenant_id: UUID, own: str) -> str:
        owner = self._groups.get(tenant_id) or tenant_id.hex
        digest = hmac.digest(self._key, f"{owner}\0{own}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def add_salt(self, body: bytes, tenant_id: UUID) -> bytes:
        """Return a JSON object with the salt of the tenant; the request's own salt is part of it.

        A body that the engine refuses stays as it is: no object, or a salt that vLLM rejects.
        """
        if _NAME in body or _ESCAPED in body:
            return self._replace_salt(body, tenant_id)
        return _with_field(body, self.salt(tenant_id))

    def _replace_salt(self, body: bytes, tenant_id: UUID) -> bytes:
        try:
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            if CACHE_SALT_FIELD not in fields:
                return _with_field(body, self.salt(tenant_id))
            own = msgspec.json.decode(fields[CACHE_SALT_FIELD], type=str | None)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return body
        if own is not None and not _is_valid(own):
            return body
        salt = msgspec.Raw(msgspec.json.encode(self.salt(tenant_id, own or "")))
        return msgspec.json.encode(fields | {CACHE_SALT_FIELD: salt})


def prefix_cache_salts(settings: EngineSettings) -> PrefixCacheSalts | None:
    """Return the salts for an engine, or None if it has no prefix cache of vLLM."""
    if not settings.has_prefix_cache:
        return None
    given = settings.cache_salt_key
    key = decoded_keys(given)[0] if given is not None else secrets.token_bytes(KEY_BYTES)
    groups = {
        tenant: f"group of {group[0].hex}"
        for group in settings.cache_salt_groups or ()
        for tenant in group
    }
    return PrefixCacheSalts(key, groups)


def _is_valid(salt: str) -> bool:
    return 0 < len(salt) <= _OWN_SALT_CHARS_MAX and _FORBIDDEN_CHARS.isdisjoint(salt)


def _with_field(body: bytes, salt: str) -> bytes:
    """Insert the field before the last brace: cheaper than decoding a body without the field."""
    end = body.rfind(b"}")
    head = body[:end].rstrip(_WHITESPACE)
    if end < 0 or not body.lstrip(_WHITESPACE).startswith(b"{"):
        return body
    comma = b"" if head.lstrip(_WHITESPACE) == b"{" else b","
    return b'%b%b"%b":"%b"%b' % (head, comma, _NAME, salt.encode(), body[end:])
