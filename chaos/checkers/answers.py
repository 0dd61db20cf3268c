"""P2: each item has its own answer and its own token counts.

Both engines of the drills identify the request body in their answer and generate as many tokens as
it asks for. An answer of another item, or of another job, differs in either.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

AnswerCheck = Callable[[bytes, object], bool]
"""Returns whether an answer's body belongs to an item's body."""

BYTES_PER_TOKEN: Final = 4


class _Line(msgspec.Struct):
    custom_id: str
    body: msgspec.Raw


_LINE: Final = msgspec.json.Decoder(_Line)


def input_bodies(content: bytes) -> dict[str, bytes]:
    """Return custom id to the exact body of each line of an input file."""
    lines = (_LINE.decode(line) for line in content.splitlines())
    return {line.custom_id: bytes(line.body) for line in lines}


def is_simulated_answer(body: bytes, answer: object) -> bool:
    """Return whether the simulated engine answered this body: it states the body's checksum."""
    (_, asked), (text, given, granted) = _parse_body(body), _parse_answer(answer)
    return (
        text.startswith(f"Simulated {zlib.crc32(body):08x}. ")
        and given == len(body) // BYTES_PER_TOKEN
        and granted == asked
    )


def is_nan_answer(answer: object) -> bool:
    """Return whether this is the simulated engine's answer for NaN logits: always one token."""
    return _parse_answer(answer) == ("!", 1, 1)


def is_echo_answer(body: bytes, answer: object) -> bool:
    """Return whether `RecordingUpstream` answered this body: it echoes the text."""
    text, asked = _parse_body(body)
    return _parse_answer(answer) == (text, len(text), asked)


def foreign_answers(
    bodies: Mapping[str, bytes], output: Iterable[Mapping[str, Any]], is_own_answer: AnswerCheck
) -> list[str]:
    """Return the custom ids of the output lines whose answer belongs to another item."""
    wrong = []
    for line in output:
        name = line["custom_id"]
        if name not in bodies or not is_own_answer(bodies[name], line["response"]["body"]):
            wrong.append(name)
    return wrong


def _parse_body(body: bytes) -> tuple[str, int]:
    """Return the text of a request and the tokens that it asks for."""
    found = msgspec.json.decode(body)
    return found["messages"][0]["content"], found["max_tokens"]


def _parse_answer(answer: Any) -> tuple[str, int, int]:
    """Return text, prompt tokens and completion tokens; -1 in an invalid answer."""
    try:
        (choice,) = answer["choices"]
        usage = answer["usage"]
        text = str(choice["message"]["content"])
        return text, usage["prompt_tokens"], usage["completion_tokens"]
    except (KeyError, TypeError, ValueError):
        return "", -1, -1
