"""Input files of chats and completions, and answers, with the same bytes on every machine."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

SEED = 20_260_101
LINE_BYTES = 1024
"""Of one line with its newline: a million lines stay below the API's limit of 1 GiB a file."""

OUTPUT_TOKENS = 160
"""Requested by each item: the simulated engine then answers about 0.9 KB, like a real chat."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

CHARS_MIN, CHARS_MAX = 100, 600  # two to three characters a token
TOKENS_MIN, TOKENS_MAX = 16, 128
_CORPUS_BYTES = 1 << 20
_WORD_COUNT = 2000
_WRITE_LINES = 10_000


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of items, whose custom ids are those of `custom_id`, in order."""

    path: Path
    items: int


class InputLine(msgspec.Struct):
    """A line of an input file."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


def custom_id(index: int) -> str:
    """Return the custom id of an item."""
    return f"r-{index}"


@lru_cache(maxsize=2)
def corpus(size: int = _CORPUS_BYTES, *, seed: int = SEED) -> str:
    """Return text of invented words that compresses about like prose and needs no escapes."""
    rng = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 10))) for _ in range(_WORD_COUNT)]
    text: list[str] = []
    length = 0
    while length < size:
        text.append(rng.choice(words))
        length += len(text[-1]) + 1
    return " ".join(text)[:size]


def chat_file(path: Path, items: int, *, model: str, seed: int = SEED) -> InputFile:
    """Write `items` chat lines of `LINE_BYTES` each."""
    with path.open("wb") as file:
        batch: list[bytes] = []
        for line in chat_lines(items, model=model, seed=seed):
            batch.append(line)
            if len(batch) == _WRITE_LINES:
                file.writelines(batch)
                batch.clear()
        file.writelines(batch)
    return InputFile(path, items)


def chat_lines(items: int, *, model: str, seed: int = SEED) -> Iterator[bytes]:
    """Yield chat lines; each prompt is a slice of one corpus."""
    text = corpus().encode("ascii")
    rng = random.Random(seed)
    tail = b'"}],"max_tokens":%d}}\n' % OUTPUT_TOKENS
    for index in range(items):
        head = (
            b'{"custom_id":"%b","method":"POST","url":"%b","body":{"model":"%b",'
            b'"messages":[{"role":"user","content":"'
            % (custom_id(index).encode(), CHAT.encode(), model.encode())
        )
        size = LINE_BYTES - len(head) - len(tail)
        start = rng.randrange(len(text) - size)
        yield head + text[start : start + size] + tail


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of one item; generation ends at exactly `output_tokens`."""

    text: str
    output_tokens: int


def prompts(items: int, *, seed: int = SEED) -> list[Prompt]:
    """Return prompts with uniformly distributed lengths of prompt and answer."""
    text = corpus()
    rng = random.Random(seed)
    found = []
    for _ in range(items):
        size = rng.randint(CHARS_MIN, CHARS_MAX)
        start = rng.randrange(len(text) - size)
        found.append(Prompt(text[start : start + size], rng.randint(TOKENS_MIN, TOKENS_MAX)))
    return found


def completion_file(path: Path, items: list[Prompt], *, model: str) -> InputFile:
    """Write one completion a line."""
    with path.open("wb") as file:
        for index, prompt in enumerate(items):
            line = {
                "custom_id": custom_id(index),
                "method": "POST",
                "url": COMPLETIONS,
                "body": {"model": model, "prompt": prompt.text, **sampling(prompt)},
            }
            file.write(msgspec.json.encode(line) + b"\n")
    return InputFile(path, len(items))


def sampling(prompt: Prompt) -> dict[str, object]:
    """Return vLLM's sampling parameters, which have the same names on both paths."""
    return {"max_tokens": prompt.output_tokens, "temperature": 0.0, "ignore_eos": True}


def chat_answer(index: int) -> bytes:
    """Return an answer as long as the simulated engine's, for peers without an engine."""
    return _ANSWER % index


_ANSWER = (
    b'{"id":"chatcmpl-%08x","object":"chat.completion","created":0,"model":"simulated/simulated",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"'
    + (b"No model has read the prompt. " * 22)[: OUTPUT_TOKENS * 4]
    + b'","refusal":null},"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":230,'
    b'"completion_tokens":160,"total_tokens":390}}'
)


def short_file(folder: Path, items: int, *, model: str) -> Path:
    """Return a file of short chats: the pool is the bottleneck, not the machine."""
    path = folder / f"short-{items}.jsonl"
    if not path.exists():
        message = [{"role": "user", "content": "hello"}]
        body = msgspec.Raw(
            msgspec.json.encode({"model": model, "messages": message, "max_tokens": 2})
        )
        with path.open("wb") as file:
            for index in range(items):
                line = InputLine(custom_id(index), "POST", CHAT, body)
                file.write(msgspec.json.encode(line) + b"\n")
    return path
