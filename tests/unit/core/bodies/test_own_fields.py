"""Goal: `stream` is read as vLLM reads it, by pydantic's lax mode."""

import math

import pytest
from pydantic import TypeAdapter, ValidationError

from core.bodies.own_fields import StreamField, is_stream_requested

VLLM: TypeAdapter[bool | None] = TypeAdapter(bool | None)
WORDS = ("0", "1", "true", "false", "t", "f", "yes", "no", "y", "n", "on", "off")
OTHERS = ("", " true", "true ", "1.0", "00", "2", "-1", "none", "null", "ok", "\u212a", "ye\u017f")


@pytest.mark.parametrize(
    "field",
    [
        *(None, True, False, 0, 1, 2, -1, 2**70, 0.0, -0.0, 1.0, 0.5, math.inf),
        *(form(word) for word in WORDS for form in (str, str.upper, str.title)),
        *OTHERS,
    ],
)
def test_a_field_is_read_as_pydantic_reads_it(field: StreamField) -> None:
    try:
        expected = bool(VLLM.validate_python(field))
    except ValidationError:
        with pytest.raises(ValueError, match="not a boolean"):
            is_stream_requested(field)
    else:
        assert is_stream_requested(field) is expected
