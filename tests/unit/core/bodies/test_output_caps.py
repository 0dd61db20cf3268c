"""Goal: a body asks for no more output than the cap, and every other field stays as it was."""

import json
from typing import Any

import pytest

from core.bodies.output_caps import with_model, with_output_cap
from core.bodies.token_estimates import requested_tokens

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
CAP = 256


@pytest.mark.parametrize(
    ("endpoint", "fields", "capped"),
    [
        (CHAT, {"max_tokens": 1000}, {"max_tokens": CAP}),
        (CHAT, {"max_completion_tokens": 1000}, {"max_completion_tokens": CAP}),
        (
            CHAT,
            {"max_tokens": 900, "max_completion_tokens": 100},
            {"max_tokens": CAP, "max_completion_tokens": 100},
        ),
        (CHAT, {}, {"max_completion_tokens": CAP}),
        (CHAT, {"max_tokens": None}, {"max_tokens": None, "max_completion_tokens": CAP}),
        (CHAT, {"max_tokens": "1000"}, {"max_tokens": CAP}),
        (CHAT, {"max_tokens": CAP}, None),
        (CHAT, {"max_tokens": 10}, None),
        (CHAT, {"max_tokens": 1000, "min_tokens": 500}, {"max_tokens": CAP, "min_tokens": CAP}),
        (CHAT, {"max_tokens": [1]}, None),  # the engine refuses it
        (COMPLETIONS, {"max_tokens": 1000}, {"max_tokens": CAP}),
        (COMPLETIONS, {}, None),  # 16 tokens by default
        (EMBEDDINGS, {"max_tokens": 1000}, None),
    ],
)
def test_limits_above_the_cap_are_lowered(
    endpoint: str, fields: dict[str, Any], capped: dict[str, Any] | None
) -> None:
    others = {"model": "m", "messages": [{"role": "user", "content": "é"}], "seed": 7}
    body = json.dumps(others | fields).encode()
    found = with_output_cap(endpoint, body, CAP)
    assert (None if found is None else json.loads(found)) == (capped and others | capped)
    if found is not None:
        assert requested_tokens(endpoint, found).limit in {CAP, 100}


def test_a_completion_without_a_limit_is_capped_below_its_default() -> None:
    found = with_output_cap(COMPLETIONS, b'{"prompt":"x"}', 8)
    assert found is not None
    assert json.loads(found) == {"prompt": "x", "max_tokens": 8}


def test_other_fields_keep_their_bytes() -> None:
    body = b'{"messages":[ {"a" : 1.0e2} ],"max_tokens":999}'
    found = with_output_cap(CHAT, body, 5)
    assert found == b'{"messages":[ {"a" : 1.0e2} ],"max_tokens":5}'


def test_the_model_is_replaced_alone() -> None:
    assert with_model(b'{"model":"a","n":[1 ,2]}', 'b"') == b'{"model":"b\\"","n":[1 ,2]}'
