"""Goal: idempotency headers are parsed correctly."""

from uuid import UUID

import pytest

from api.http.errors import ApiError
from api.idempotency.idempotent_requests import IdempotencyContext, idempotency_from_headers
from api.settings import ApiSettings
from jobs.store.idempotency import KeyScope
from tenancy.api_keys import Principal

ME, COLLEAGUE = Principal(UUID(int=1), UUID(int=2)), Principal(UUID(int=1), UUID(int=3))


def said(
    headers: dict[bytes, bytes], *, principal: Principal = ME, route: str = "POST /v1/batches"
) -> IdempotencyContext:
    return idempotency_from_headers(
        headers, principal, route, settings=ApiSettings(), arrived_s=10.0
    )


def derived_key(repeats: IdempotencyContext, body_sha256: bytes = b"b") -> str:
    claim = repeats.claim(body_sha256, lambda: 11.0)
    assert claim is not None
    assert claim.scope is KeyScope.RETRY
    return claim.key


@pytest.mark.parametrize("key", [b"", b"  ", b"x" * 256, b"a\tb", b"a\r\nb", b"a\x00", b"\x7f"])
def test_invalid_keys(key: bytes) -> None:
    with pytest.raises(ApiError) as refusal:
        said({b"idempotency-key": key})
    assert (refusal.value.status, refusal.value.code) == (400, "idempotency_key_invalid")


@pytest.mark.parametrize("key", [b"x", b"x" * 255, b'"quoted"', "schlüssel".encode("latin-1")])
def test_a_client_key(key: bytes) -> None:
    claim = said({b"idempotency-key": key}).claim(b"b", lambda: 12.5)
    assert claim is not None
    assert (claim.scope, claim.key) == (KeyScope.CLIENT, key.decode("latin-1"))
    assert (claim.keep_s, claim.age_s()) == (86_400.0, 2.5)


def test_a_client_key_takes_precedence_over_a_retry_count() -> None:
    claim = said({b"idempotency-key": b"k", b"x-stainless-retry-count": b"1"}).claim(
        b"b", lambda: 10.0
    )
    assert claim is not None
    assert claim.scope is KeyScope.CLIENT


def test_repeatable_actions_ignore_the_retry_count() -> None:
    tries = {b"x-stainless-retry-count": b"1"}
    assert said(tries).for_client_key_only().claim(b"b", lambda: 10.0) is None
    claim = (
        said({b"idempotency-key": b"k", **tries}).for_client_key_only().claim(b"b", lambda: 10.0)
    )
    assert claim is not None
    assert (claim.scope, claim.key) == (KeyScope.CLIENT, "k")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"x-stainless-retry-count": b"one"},
        {b"x-stainless-retry-count": b"-1"},
        {b"x-stainless-retry-count": b"1", b"x-millrace-no-retry-protection": b"True"},
    ],
)
def test_a_post_without_headers_is_always_new(headers: dict[bytes, bytes]) -> None:
    assert said(headers).claim(b"b", lambda: 10.0) is None


def test_a_retry_has_the_key_of_its_first_attempt_only() -> None:
    first, retry = ({b"x-stainless-retry-count": count} for count in (b"0", b"1"))
    key = derived_key(said(first))
    assert derived_key(said(retry)) == key
    others = {
        derived_key(said(retry), b"other body"),
        derived_key(said(retry, principal=COLLEAGUE)),
        derived_key(said(retry, route="POST /v1/files")),
    }
    assert key not in others
    assert len(others) == 3
