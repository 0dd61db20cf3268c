"""Streams a job's results and resumes after interruptions."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from cli.api_paths import quote_id
from cli.client import transient_errors, with_stream_timeout
from cli.exits import CommandError

if TYPE_CHECKING:
    import openai

_TRIES_MAX: Final = 30
"""Interruptions in a row without a result; a restart of the server causes fewer."""

_PAUSE_S: Final = 1.0


class StreamBrokenError(CommandError):
    """The stream was interrupted too often."""


class _EndedError(Exception):
    """The job has ended and has no further results."""


@dataclass(frozen=True, slots=True)
class ResultEvent:
    """One server-sent event."""

    name: str  # empty for a result
    sequence: int
    data: bytes


def stream_results(client: "openai.OpenAI", job: str, after: int) -> Iterator[ResultEvent]:
    """Yield each result after sequence `after` once, then the event of the job's end.

    Yields nothing when `after` is the end. Retries while the server is unavailable, fails or is
    busy. Raises the client's last error, or StreamBrokenError.
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
            last = failure
        tries += 1
        time.sleep(_PAUSE_S)
    if isinstance(last, openai.APIStatusError):
        raise last
    raise StreamBrokenError


def parse_events(blocks: Iterable[bytes]) -> Iterator[ResultEvent]:
    """Yield the events in a stream of bytes, without comments and an incomplete last event."""
    rest = b""
    for block in blocks:
        *complete, rest = (rest + block).split(b"\n\n")
        for text in complete:
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
        "x-stainless-raw-response": "stream",  # makes the client stream the answer
    }
    answer = (
        with_stream_timeout(client)
        .with_options(max_retries=0)
        .get(
            f"/batches/{quote_id(job)}/results",
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
