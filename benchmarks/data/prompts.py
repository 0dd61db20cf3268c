"""Completion prompts of mixed lengths, as lines of a job and as a list for offline generation."""

import random
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.data.input_files import COMPLETIONS, SEED, InputFile, corpus, custom_id

CHARS_MIN, CHARS_MAX = 100, 600  # two to three characters a token
TOKENS_MIN, TOKENS_MAX = 16, 128


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one item asks; it ends at `output_tokens` whatever the model says."""

    text: str
    output_tokens: int


def prompts(items: int, *, seed: int = SEED) -> list[Prompt]:
    """Return prompts, uniform in length and in the length of their answers."""
    text = corpus()
    rng = random.Random(seed)
    found = []
    for _ in range(items):
        size = rng.randint(CHARS_MIN, CHARS_MAX)
        start = rng.randrange(len(text) - size)
        found.append(Prompt(text[start : start + size], rng.randint(TOKENS_MIN, TOKENS_MAX)))
    return found


def completion_file(path: Path, asked: list[Prompt], *, model: str) -> InputFile:
    """Write one completion a line."""
    with path.open("wb") as file:
        for index, prompt in enumerate(asked):
            line = {
                "custom_id": custom_id(index),
                "method": "POST",
                "url": COMPLETIONS,
                "body": {"model": model, "prompt": prompt.text, **sampling(prompt)},
            }
            file.write(msgspec.json.encode(line) + b"\n")
    return InputFile(path, len(asked))


def sampling(prompt: Prompt) -> dict[str, object]:
    """Return the sampling parameters by the names that vLLM has for them on both paths."""
    return {"max_tokens": prompt.output_tokens, "temperature": 0.0, "ignore_eos": True}
