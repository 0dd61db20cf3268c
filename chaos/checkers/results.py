"""P2 and P4: each item appears once with its own answer, and the bill is the sum of the items.

Both engines of the drills identify the request body in their answer and generate as many tokens as
it asks for. An answer of another item, or of another job, differs in either.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Billed items and their tokens."""

    items: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def difference(self, other: "Usage") -> int:
        """Return the largest absolute difference of the three numbers."""
        return max(
            abs(self.items - other.items),
            abs(self.input_tokens - other.input_tokens),
            abs(self.output_tokens - other.output_tokens),
        )


class IdMismatch(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of two multisets of custom ids."""

    missing: list[str]
    duplicated: list[str]
    foreign: list[str]  # not of the job

    @property
    def total(self) -> int:
        """0 when both are equal."""
        return len(self.missing) + len(self.duplicated) + len(self.foreign)


def compare_ids(wanted: Iterable[str], found: Iterable[str]) -> IdMismatch:
    """Compare the custom ids of an input with those of its output and error files."""
    want, have = Counter(wanted), Counter(found)
    return IdMismatch(
        missing=sorted((want - have).elements()),
        duplicated=sorted(key for key in (have - want).elements() if key in want),
        foreign=sorted(key for key in (have - want).elements() if key not in want),
    )


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Items by outcome, and the tokens of executed items."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def total(self) -> int:
        """The items with an outcome."""
        return self.succeeded + self.failed + self.cancelled + self.expired


def tally_from_files(lines: Usage, output_count: int, error_codes: Iterable[str]) -> Tally:
    """Return the tally of an output file's line count and an error file's codes."""
    codes = Counter(error_codes)
    cancelled, expired = codes.pop("batch_cancelled", 0), codes.pop("batch_expired", 0)
    return Tally(
        succeeded=output_count,
        failed=codes.total(),
        cancelled=cancelled,
        expired=expired,
        input_tokens=lines.input_tokens,
        output_tokens=lines.output_tokens,
    )


def tally_from_job(job: Mapping[str, Any]) -> Tally:
    """Return the tally that a job object shows; -1 for a missing or contradictory number."""
    counts, usage = job.get("request_counts") or {}, job.get("usage") or {}
    outcomes = job.get("millrace") or {}
    numbers = {name: outcomes.get(name, -1) for name in ("cancelled", "expired")}
    for name, other in (("succeeded", "completed"), ("failed", "failed")):
        agree = outcomes.get(name) == counts.get(other)
        numbers[name] = outcomes.get(name, -1) if agree else -1
    for name in ("input_tokens", "output_tokens"):
        numbers[name] = usage.get(name, -1)
    return Tally(**numbers)


def tally_mismatches(
    items: int, tallies: Mapping[str, Tally], totals: Mapping[str, int]
) -> list[str]:
    """Return how the tallies of one job differ from each other and from its item count.

    Both maps have the source as key; the first tally is the reference.
    """
    wrong = [
        f"{source}: {total} items of {items}" for source, total in totals.items() if total != items
    ]
    wrong += [
        f"{source}: {t.total} items of {items}" for source, t in tallies.items() if t.total != items
    ]
    (first, reference), *others = tallies.items()
    for source, found in others:
        wrong += [
            f"{name}: {first} {getattr(reference, name)}, {source} {getattr(found, name)}"
            for name in Tally.__struct_fields__
            if getattr(found, name) != getattr(reference, name)
        ]
    return wrong


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
