"""Goal: a receiver with any valid secret accepts the signature, and one without rejects it."""

import base64

from hypothesis import given
from hypothesis import strategies as st
from openai import InvalidWebhookSignatureError, OpenAI

from results.webhooks.endpoints.signing_secrets import secret_text, signed_headers

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
