"""The stream of a job's results, picked up again behind the last one when it breaks off."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from cli.client import transient_errors, with_stream_timeout
from cli.exits import CommandError
from cli.path_ids import path_segment

if TYPE_CHECKING:
    import openai

_TRIES_MAX: Final = 30
"""Times in a row that a stream may break off without a result; a restart takes less."""

_PAUSE_S: Final = 1.0


class StreamBrokenError(CommandError):
    """The stream broke off again and again."""


class _EndedError(Exception):
    """The job has ended, and nothing lies behind what was asked for."""


@dataclass(frozen=True, slots=True)
class ResultEvent:
    """One server-sent event."""

    name: str  # empty for a result
    sequence: int
    data: bytes


def follow_results(client: "openai.OpenAI", job: str, after: int) -> Iterator[ResultEvent]:
    """Yield each result behind `after` once, and last the event of the job's end.

    Nothing when that lies behind `after`, too. A server that is away, fails or is busy is asked
    again. Raises what the client raised last, or StreamBrokenError.
    """
    import openai

    tries, last = 0, Exception()
    while tries < _TRIES_MAX:
        try:
            for event in parse_events(_open(client, job, after)):
                after, tries = event.sequence, 0
                yield event
                if event.name:
                    return
        except _EndedError:
            return
        except transient_errors() as failure:
            last = failure  # cut, away or busy; what the server refuses is raised
        tries += 1
        time.sleep(_PAUSE_S)
    if isinstance(last, openai.APIStatusError):
        raise last
    raise StreamBrokenError


def parse_events(blocks: Iterable[bytes]) -> Iterator[ResultEvent]:
    """Yield the events in a stream of bytes; comments and what is cut off are left out."""
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n\n")
        for text in whole:
            fields = dict(_field(line) for line in text.split(b"\n") if not line.startswith(b":"))
            if b"data" in fields:
                name, sequence = fields.get(b"event", b""), fields.get(b"id", b"0")
                yield ResultEvent(name.decode(), int(sequence), fields[b"data"])


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")


def _open(client: "openai.OpenAI", job: str, after: int) -> Iterator[bytes]:
    from openai import APIResponse

    headers = {
        "accept": "text/event-stream",
        "last-event-id": str(after),
        "x-stainless-raw-response": "stream",  # how the client is asked not to read it all
    }
    answer = (
        with_stream_timeout(client)
        .with_options(max_retries=0)
        .get(
            f"/batches/{path_segment(job)}/results",
            cast_to=APIResponse[bytes],
            options={"headers": headers},
        )
    )
    try:
        if answer.status_code == HTTPStatus.NO_CONTENT:
            raise _EndedError
        yield from answer.iter_bytes()
    finally:
        answer.close()
