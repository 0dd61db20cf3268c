"""What the simulated engine writes: text of a given length that says what it is. Pure functions."""

import zlib
from collections.abc import Sequence
from functools import lru_cache

import msgspec

BYTES_PER_TOKEN = 4
OUTPUT_TOKENS_DEFAULT = 64
STREAM_TOKENS_DEFAULT = 16
"""A stream's reply is the beginning of the whole one's where no length is asked for."""
OUTPUT_TOKENS_MAX = 4096
"""Longest reply; a larger `max_tokens` ends with `stop` here."""
CHOICES_MAX = 128
ANSWER_TOKENS_MAX = 1_000_000
"""Of all choices for all prompts of one body: 4 MB."""

_HEAD_CHARS = len("Simulated 00000000. ")
_SENTENCE = "No model has read the prompt. "


class GeneratedReply(msgspec.Struct, frozen=True, gc=False):
    """One choice. The text is ASCII and needs no escape in JSON."""

    tokens: int
    text: bytes
    finish: bytes

    def pieces(self) -> list[bytes]:
        """Return the text token by token; one empty piece if there is none."""
        count = max(1, self.tokens)
        starts = [index * BYTES_PER_TOKEN for index in range(count)]
        ends = [*starts[1:], len(self.text)]
        return [self.text[start:end] for start, end in zip(starts, ends, strict=True)]


def digest_of(body: bytes) -> int:
    """Return 32 bits that depend on the whole body."""
    return zlib.crc32(body)


def input_tokens_of(body: bytes) -> int:
    """Return the tokens of a body, all of its JSON included."""
    return len(body) // BYTES_PER_TOKEN


def generate_replies(
    digest: int,
    count: int,
    asked: int | None,
    stop: str | Sequence[str] | None,
    *,
    default: int = OUTPUT_TOKENS_DEFAULT,
) -> list[GeneratedReply]:
    """Return one reply a choice, each with another head; cut before the first of `stop`."""
    tokens, tail, finish = reply_layout(default if asked is None else asked, asked is None)
    if not stop and count == 1:  # as bulk items have it
        return [GeneratedReply(tokens, b"Simulated %08x. %b" % (digest, tail), finish)]
    ends = [stop] if isinstance(stop, str) else stop or ()
    written = []
    for choice in range(count):
        text = b"Simulated %08x. %b" % ((digest + choice) & 0xFFFFFFFF, tail)
        cuts = [at for end in ends if end and (at := text.find(end.encode())) >= 0]
        if cuts:
            kept = text[: min(cuts)]
            written.append(
                GeneratedReply(min(tokens, -(-len(kept) // BYTES_PER_TOKEN)), kept, b"stop")
            )
        else:
            written.append(GeneratedReply(tokens, text, finish))
    return written


@lru_cache(maxsize=1024)
def reply_layout(asked: int, ends_itself: bool) -> tuple[int, bytes, bytes]:
    """Return the output tokens, the text after its head, and the finish reason of a whole reply."""
    tokens = min(asked, OUTPUT_TOKENS_MAX)
    tail_chars = max(0, tokens * BYTES_PER_TOKEN - _HEAD_CHARS)
    tail = (_SENTENCE * (tail_chars // len(_SENTENCE) + 1))[:tail_chars].encode()
    return tokens, tail, b"length" if asked == tokens and not ends_itself else b"stop"
