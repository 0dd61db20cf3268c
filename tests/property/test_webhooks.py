"""Goal: signatures verify with valid secrets only; attempts continue for 72 hours and end."""

import base64

from hypothesis import given
from hypothesis import strategies as st
from openai import InvalidWebhookSignatureError, OpenAI

from core.webhook_signatures import secret_text, signed_headers
from results.webhooks.delivery.retry_schedule import (
    DELAYS_S,
    RETRY_AFTER_S_MAX,
    DeliveryFailure,
    next_delay_s,
)

secrets = st.binary(min_size=32, max_size=32)
bodies = st.text(max_size=200).map(str.encode)
ids = st.from_regex(r"evt_[0-9a-f]{32}", fullmatch=True)
WEBHOOKS = OpenAI(api_key="none").webhooks
FOR_EVER = 10**9


@given(old=secrets, new=secrets, message_id=ids, body=bodies)
def test_both_secrets_verify_during_a_rotation(
    old: bytes, new: bytes, message_id: str, body: bytes
) -> None:
    headers = signed_headers([new, old], message_id, 1_700_000_000, body)

    for secret in (old, new):
        assert accepts(secret, headers, body)
    assert len(headers["webhook-signature"].split(" ")) == 2


@given(signing=secrets, other=secrets, message_id=ids, body=bodies)
def test_no_other_secret_verifies(
    signing: bytes, other: bytes, message_id: str, body: bytes
) -> None:
    headers = signed_headers([signing], message_id, 1_700_000_000, body)

    assert accepts(other, headers, body) == (signing == other)


@given(secret=secrets, message_id=ids, body=bodies, changed=bodies)
def test_a_changed_body_or_time_does_not_verify(
    secret: bytes, message_id: str, body: bytes, changed: bytes
) -> None:
    headers = signed_headers([secret], message_id, 1_700_000_000, body)

    assert accepts(secret, headers, changed) == (body == changed)
    assert not accepts(secret, headers | {"webhook-timestamp": "1700000001"}, body)
    assert not accepts(secret, headers | {"webhook-id": f"{message_id}0"}, body)


def test_published_signature_vector() -> None:
    """The example of the specification's reference implementations."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed_headers(
        [secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )

    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def accepts(secret: bytes, headers: dict[str, str], body: bytes) -> bool:
    """Verify with the official client, as a receiver does."""
    try:
        WEBHOOKS.verify_signature(body, headers, secret=secret_text(secret), tolerance=FOR_EVER)
    except InvalidWebhookSignatureError:
        return False
    return True


PROMISED_S = 72 * 3600.0
JITTER_MAX = 1.1

fractions = st.floats(0, 1, exclude_max=True)
answers = st.tuples(
    st.sampled_from([None, 301, 400, 404, 429, 500, 502, 503, 504]),
    st.none() | st.floats(0, RETRY_AFTER_S_MAX),
)


def delays_s(tries: list[tuple[tuple[int | None, float | None], float]]) -> list[float]:
    """Return the wait after each failure until the last attempt."""
    waits_s = []
    for count, ((status, retry_after_s), fraction) in enumerate(tries, start=1):
        wait_s = next_delay_s(count, DeliveryFailure(status, retry_after_s), fraction)
        if wait_s is None:
            break
        waits_s.append(wait_s)
    return waits_s


@given(st.lists(st.tuples(answers, fractions), min_size=20, max_size=20))
def test_last_attempt_is_after_72_hours_and_none_is_early(
    tries: list[tuple[tuple[int | None, float | None], float]],
) -> None:
    waits_s = delays_s(tries)

    assert len(waits_s) == len(DELAYS_S) - 1
    assert sum(waits_s) >= PROMISED_S
    published = DELAYS_S[1:]
    for wait_s, least_s, ((_, named_s), _) in zip(waits_s, published, tries, strict=False):
        assert max(least_s, named_s or 0.0) <= wait_s <= max(least_s * JITTER_MAX, named_s or 0.0)
