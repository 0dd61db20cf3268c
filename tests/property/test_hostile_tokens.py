"""Goal: only an issued API key is well-formed, whatever a header contains.

Tokens are made up, made of a real key, or in the form of other systems'. Those with a right
checksum stand for nobody: the look-up is by the hash of all 256 bits.
"""

import base64
import json
import string
import zlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.auth.key_cache import offered_secret
from tenancy.api_keys import is_well_formed
from tenancy.key_secrets import key_secret, secret_hash

REAL = key_secret("sk-", bytes(range(32)))
BODY, CHECKSUM = REAL[:-8], REAL[-8:]


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


claims = st.fixed_dictionaries(
    {"sub": st.sampled_from(["admin", REAL]), "exp": st.integers(-1, 2**40)},
    optional={"nbf": st.integers(), "aud": st.text(max_size=5), "iss": st.text(max_size=5)},
)
heads = st.fixed_dictionaries(
    {"alg": st.sampled_from(["none", "None", "HS256", "RS256", ""])},
    optional={"kid": st.sampled_from(["../../dev/null", "' OR 1=1 --", REAL, "\x00"])},
)
web_tokens = st.builds(
    lambda head, body, end: f"{encoded(head)}.{encoded(body)}.{end}",
    heads,
    claims,
    st.sampled_from(["", "x", CHECKSUM]),
)
places = st.integers(0, len(REAL) - 1)
changed = st.one_of(
    st.builds(lambda at, c: REAL[:at] + c + REAL[at + 1 :], places, st.characters()),
    st.builds(lambda at: REAL[:at] + REAL[at].swapcase() + REAL[at + 1 :], places),
    st.builds(lambda at, more: REAL[:at] + more + REAL[at:], places, st.text(min_size=1)),
    st.builds(lambda a, b: REAL[: min(a, b)] + REAL[max(a, b) :], places, places),
    st.sampled_from([REAL.upper(), REAL[::-1], REAL * 2, REAL + "\n", "\ufeff" + REAL]),
    st.sampled_from([f"{REAL}\x00", f"{BODY}{'0' * 8}", f"{REAL},{REAL}", f" {REAL[1:]}"]),
)
texts = st.one_of(
    st.text(max_size=100),
    st.text(string.ascii_letters + string.digits + "-_", min_size=43, max_size=43).map(
        lambda random: f"sk-{random}{CHECKSUM}"
    ),
    st.sampled_from(["sk-", "' OR '1'='1", "%00", "null", "undefined", "Bearer", "{}", "*"]),
)
forged_bodies = st.binary(min_size=32, max_size=32)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(token=st.one_of(web_tokens, changed, texts))
def test_hostile_tokens_are_malformed(token: str) -> None:
    if token != REAL:  # changes may cancel out
        assert not is_well_formed(token)


@given(random=forged_bodies)
def test_valid_checksum_alone_authenticates_no_tenant(random: bytes) -> None:
    forged = key_secret("sk-", random)

    assert is_well_formed(forged)
    assert (secret_hash(forged) == secret_hash(REAL)) == (forged == REAL)
    assert f"{zlib.crc32(forged[:-8].encode()):08x}" == forged[-8:]


@given(header=st.text(st.characters(max_codepoint=255), max_size=200))
def test_any_header_yields_a_token_or_none(header: str) -> None:
    for offered in (offered_secret(header, None), offered_secret(None, header)):
        assert offered is None or (offered == offered.strip() and secret_hash(offered))


@given(around=st.text(" \t", max_size=3), scheme=st.sampled_from(["Bearer", "bearer", "BEARER"]))
def test_valid_key_is_extracted_unchanged(around: str, scheme: str) -> None:
    assert offered_secret(f"{scheme} {around}{REAL}{around}", None) == REAL
    assert offered_secret(f"Basic {REAL}", REAL) == REAL
    assert offered_secret(f"Basic {REAL}", None) is None
