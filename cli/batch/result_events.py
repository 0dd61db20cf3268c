"""The event stream of a job's results, resumed after the last event when it is interrupted."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from cli.api_client import path_segment, transient_errors, with_stream_timeout
from cli.exits import CommandError

if TYPE_CHECKING:
    import openai

_TRIES_MAX: Final = 30
"""Consecutive interruptions without a result; a restart of the API causes fewer."""

_PAUSE_S: Final = 1.0


class StreamBrokenError(CommandError):
    """The result stream was interrupted too often."""


class _EndOfStreamError(Exception):
    """The job has ended and there are no more events."""


@dataclass(frozen=True, slots=True)
class ResultEvent:
    """One server-sent event of the result stream."""

    name: str  # empty for a result
    sequence: int
    data: bytes


def follow_results(client: "openai.OpenAI", job: str, after: int) -> Iterator[ResultEvent]:
    """Yield each result after the sequence `after` once, then the event of the job's end.

    Yields nothing when there are no more events. Transient errors are retried. Raises the last
    error of the client, or StreamBrokenError.
    """
    import openai

    tries, last_error = 0, Exception()
    while tries < _TRIES_MAX:
        try:
            for event in parse_events(_open(client, job, after)):
                after, tries = event.sequence, 0
                yield event
                if event.name:
                    return
        except _EndOfStreamError:
            return
        except transient_errors() as error:
            last_error = error
        tries += 1
        time.sleep(_PAUSE_S)
    if isinstance(last_error, openai.APIStatusError):
        raise last_error
    raise StreamBrokenError


def parse_events(blocks: Iterable[bytes]) -> Iterator[ResultEvent]:
    """Yield the complete events of a byte stream; comments are skipped."""
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
        "x-stainless-raw-response": "stream",  # makes the client return the unread response
    }
    response = (
        with_stream_timeout(client)
        .with_options(max_retries=0)
        .get(
            f"/batches/{path_segment(job)}/results",
            cast_to=APIResponse[bytes],
            options={"headers": headers},
        )
    )
    try:
        if response.status_code == HTTPStatus.NO_CONTENT:
            raise _EndOfStreamError
        yield from response.iter_bytes()
    finally:
        response.close()
