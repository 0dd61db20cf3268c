"""The text of simulated replies: of a given length, and saying what it is. Pure functions."""

import zlib
from collections.abc import Sequence
from functools import lru_cache

import msgspec

BYTES_PER_TOKEN = 4
OUTPUT_TOKENS_DEFAULT = 64
STREAM_TOKENS_DEFAULT = 16
"""Length of a stream without a requested one: the beginning of the reply that does not stream."""
OUTPUT_TOKENS_MAX = 4096
"""Longest reply; a larger `max_tokens` ends with `stop` here."""
CHOICES_MAX = 128
ANSWER_TOKENS_MAX = 1_000_000
"""Tokens of all choices for all prompts of one body: 4 MB."""

_HEAD_CHARS = len("Simulated 00000000. ")
_SENTENCE = "No model has read the prompt. "


class GeneratedReply(msgspec.Struct, frozen=True, gc=False):
    """One choice. The text is ASCII and needs no escape in JSON."""

    tokens: int
    text: bytes
    finish: bytes

    def pieces(self) -> list[bytes]:
        """Return the text token by token; one empty piece without tokens."""
        count = max(1, self.tokens)
        starts = [index * BYTES_PER_TOKEN for index in range(count)]
        ends = [*starts[1:], len(self.text)]
        return [self.text[start:end] for start, end in zip(starts, ends, strict=True)]


def digest_of(body: bytes) -> int:
    """Return a 32-bit checksum of the body."""
    return zlib.crc32(body)


def input_tokens_of(body: bytes) -> int:
    """Return the tokens of a body, including all of its JSON."""
    return len(body) // BYTES_PER_TOKEN


def generate_replies(
    digest: int,
    count: int,
    requested_tokens: int | None,
    stop: str | Sequence[str] | None,
    *,
    default: int = OUTPUT_TOKENS_DEFAULT,
) -> list[GeneratedReply]:
    """Return one reply a choice, each with its own head; truncated before the first of `stop`."""
    ends_itself = requested_tokens is None
    tokens, tail, finish = reply_layout(
        default if requested_tokens is None else requested_tokens, ends_itself
    )
    if not stop and count == 1:  # the usual bulk item
        return [GeneratedReply(tokens, b"Simulated %08x. %b" % (digest, tail), finish)]
    stops = [stop] if isinstance(stop, str) else stop or ()
    generated = []
    for choice in range(count):
        text = b"Simulated %08x. %b" % ((digest + choice) & 0xFFFFFFFF, tail)
        found = [at for end in stops if end and (at := text.find(end.encode())) >= 0]
        if found:
            kept = text[: min(found)]
            kept_tokens = min(tokens, -(-len(kept) // BYTES_PER_TOKEN))
            generated.append(GeneratedReply(kept_tokens, kept, b"stop"))
        else:
            generated.append(GeneratedReply(tokens, text, finish))
    return generated


@lru_cache(maxsize=1024)
def reply_layout(requested_tokens: int, ends_itself: bool) -> tuple[int, bytes, bytes]:
    """Return a reply's output tokens, the text after its head, and its finish reason."""
    tokens = min(requested_tokens, OUTPUT_TOKENS_MAX)
    tail_chars = max(0, tokens * BYTES_PER_TOKEN - _HEAD_CHARS)
    tail = (_SENTENCE * (tail_chars // len(_SENTENCE) + 1))[:tail_chars].encode()
    return tokens, tail, b"length" if requested_tokens == tokens and not ends_itself else b"stop"
