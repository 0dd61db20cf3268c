"""P2: each item has its own answer, and the tokens of its own.

An engine under drill says in its answer which body it has read, and grants as many tokens as
that body asks for. So the answer of a neighbour, or of another job, shows in either.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

AnswerCheck = Callable[[bytes, object], bool]
"""Whether the body of an answer is the one to the body of an item."""

BYTES_PER_TOKEN: Final = 4


class _Line(msgspec.Struct):
    custom_id: str
    body: msgspec.Raw


class _Text(msgspec.Struct):
    content: str


class _Body(msgspec.Struct):
    messages: list[_Text]
    max_tokens: int


class _Choice(msgspec.Struct):
    message: _Text


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage


_LINE: Final = msgspec.json.Decoder(_Line)
_BODY: Final = msgspec.json.Decoder(_Body)


def input_bodies(content: bytes) -> dict[str, bytes]:
    """Return custom id to body, to the byte, of each line of an input file."""
    lines = (_LINE.decode(line) for line in content.splitlines())
    return {line.custom_id: bytes(line.body) for line in lines}


def is_simulated_answer(body: bytes, answer: object) -> bool:
    """Whether the simulated engine answers so: it states the checksum of the body."""
    asked, (text, given, granted) = _BODY.decode(body), _told(answer)
    return (
        text.startswith(f"Simulated {zlib.crc32(body):08x}. ")
        and given == len(body) // BYTES_PER_TOKEN
        and granted == asked.max_tokens
    )


def is_nan_answer(answer: object) -> bool:
    """Whether the simulated engine answers so where logits are no numbers: always one token."""
    return _told(answer) == ("!", 1, 1)


def is_echo_answer(body: bytes, answer: object) -> bool:
    """Whether the upstream that notes executions answers so: it says the text again."""
    asked = _BODY.decode(body)
    text = asked.messages[0].content
    return _told(answer) == (text, len(text), asked.max_tokens)


def foreign_answers(
    bodies: Mapping[str, bytes], output: Iterable[Mapping[str, Any]], is_own_answer: AnswerCheck
) -> list[str]:
    """Return the custom ids of lines of an output file whose answer is not their item's own."""
    wrong = []
    for line in output:
        name = line["custom_id"]
        if name not in bodies or not is_own_answer(bodies[name], line["response"]["body"]):
            wrong.append(name)
    return wrong


def _told(answer: object) -> tuple[str, int, int]:
    """Return the text and both counts of tokens; of what is no whole answer, none that fits."""
    try:
        found = msgspec.convert(answer, _Answer)
    except msgspec.ValidationError:
        return "", -1, -1
    (text, *others) = [choice.message.content for choice in found.choices] or [""]
    if others:
        return "", -1, -1
    return text, found.usage.prompt_tokens, found.usage.completion_tokens
