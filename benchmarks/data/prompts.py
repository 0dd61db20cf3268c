"""Completion prompts of mixed lengths, as input lines and as a list for offline generation."""

import random
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.data.input_files import COMPLETIONS, SEED, InputFile, corpus, custom_id

CHARS_MIN, CHARS_MAX = 100, 600  # two to three characters a token
TOKENS_MIN, TOKENS_MAX = 16, 128


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
