"""Goal: engines get their own name of a model, and answers show the name that was asked for."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.engines.model_names import model_writer, other_model, with_model

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("body", "other"),
    [
        (b'{"model":"m"}', None),
        (b'{"model":"alias","messages":[]}', "alias"),
        (b'{"messages":[{"model":"x"}],"model":"m@0123456789ab"}', "m@0123456789ab"),
        (b'{"\\u006dodel":"alias"}', "alias"),
        (b'{"prompt":"a"}', None),
        (b'{"model":null}', None),
        (b'{"model":5}', None),
        (b"[]", None),
        (b"{", None),
        (b'{"model":"\xff"}', None),
    ],
)
def test_other_model_is_found(body: bytes, other: str | None) -> None:
    assert other_model(body, "m") == other


@given(st.dictionaries(st.text(), _JSON), st.text(), st.text(min_size=1))
def test_only_the_model_of_a_body_changes(
    fields: dict[str, object], asked: str, served: str
) -> None:
    body = json.dumps(fields | {"model": asked}).encode()
    assert msgspec.json.decode(with_model(body, served)) == fields | {"model": served}


@given(st.text(), st.text(), st.text())
def test_answer_shows_the_model_that_was_asked_for(asked: str, served: str, content: str) -> None:
    message = {"content": content + '"model":"injected"'}
    answer = {"id": "x", "model": served, "choices": [{"message": message}]}
    written = model_writer(asked)(msgspec.json.encode(answer))
    assert msgspec.json.decode(written) == answer | {"model": asked}


def test_answer_without_the_field_is_unchanged() -> None:
    payload = b'{"object":"list","data":[{"content":"\\"model\\":\\"a\\""}]}'
    assert model_writer("b")(payload) == payload
