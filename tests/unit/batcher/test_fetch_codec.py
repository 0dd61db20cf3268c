"""Goal: fetches are encoded and decoded byte for byte like aiokafka's own schema."""

from io import BytesIO
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest_v11, FetchResponse_v11
from hypothesis import given
from hypothesis import strategies as st

from batcher.faust_app import fetch_codec

ORIGINAL = {message: message.SCHEMA for message in (FetchRequest_v11, FetchResponse_v11)}
OFFSETS = st.integers(-1, 2**63 - 1)
INT32 = st.integers(-1, 2**31 - 1)
ASKED = st.tuples(INT32, INT32, OFFSETS, OFFSETS, INT32)
ABORTED = st.none() | st.lists(st.tuples(OFFSETS, OFFSETS), max_size=3)
FETCHED = st.tuples(
    INT32, st.integers(-1, 99), OFFSETS, OFFSETS, OFFSETS, ABORTED, INT32, st.none() | st.binary()
)


def topics(partitions: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.tuples(st.text(max_size=9), st.lists(partitions, max_size=20)), max_size=3)


@pytest.fixture(autouse=True, scope="module")
def installed() -> None:
    fetch_codec.install()
    fetch_codec.install()  # a second batcher in one process changes nothing


@given(asked=topics(ASKED))
def test_request_encodes_to_the_same_bytes(asked: list[Any]) -> None:
    message = FetchRequest_v11(-1, 250, 1, 2**20, 0, 0, -1, asked, [], "a")
    values = [message.__dict__[name] for name in FetchRequest_v11.SCHEMA.names]
    assert message.encode() == ORIGINAL[FetchRequest_v11].encode(values)


@given(fetched=topics(FETCHED))
def test_response_decodes_to_the_same_values(fetched: list[Any]) -> None:
    encoded = ORIGINAL[FetchResponse_v11].encode((0, 0, 7, fetched))
    assert FetchResponse_v11.SCHEMA is not ORIGINAL[FetchResponse_v11]
    assert FetchResponse_v11.decode(encoded).topics == fetched


@given(fetched=topics(FETCHED), cut=st.integers(1, 40))
def test_truncated_response_is_rejected(fetched: list[Any], cut: int) -> None:
    encoded = ORIGINAL[FetchResponse_v11].encode((0, 0, 7, fetched))
    with pytest.raises(ValueError, match=r"underrun|unpack|Error"):
        FetchResponse_v11.decode(BytesIO(encoded[: max(0, len(encoded) - cut)]))
