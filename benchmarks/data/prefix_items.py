"""Items that share prefixes of their prompts, shuffled, and what a cache can hold of them."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.data.input_files import InputFile, Prompt, completion_file, corpus

PREFIX_CHARS, SUFFIX_CHARS = 650, 60
OUTPUT_TOKENS = 8


class PrefixItem(NamedTuple):
    """An item: its prefix, and what follows."""

    prefix: str
    suffix: str

    @property
    def prompt(self) -> Prompt:
        """Its prompt."""
        return Prompt(self.prefix + self.suffix, OUTPUT_TOKENS)


def shuffled_items(prefix_count: int, items_per_prefix: int, *, seed: int) -> list[PrefixItem]:
    """Return items in random order. Every prefix and every suffix is different."""
    rng = random.Random(seed)
    text = corpus()
    prefixes = [
        f"{number} {text[start : start + PREFIX_CHARS]}\n"
        for number, start in enumerate(rng.sample(range(len(text) - PREFIX_CHARS), prefix_count))
    ]
    items = []
    for number in range(prefix_count * items_per_prefix):
        start = rng.randrange(len(text) - SUFFIX_CHARS)
        suffix = f"{number} {text[start : start + SUFFIX_CHARS]}"
        items.append(PrefixItem(prefixes[number % prefix_count], suffix))
    rng.shuffle(items)
    return items


def prefix_file(path: Path, items: Sequence[PrefixItem], *, model: str) -> InputFile:
    """Write one completion a line."""
    return completion_file(path, [item.prompt for item in items], model=model)


def ideal_cached_tokens(
    prompts: Sequence[Sequence[int]], prefix_numbers: Sequence[int], *, block_tokens: int
) -> int:
    """Return the prompt tokens that an infinite cache of blocks holds: all but each prefix's first.

    `prompts` are token ids, `prefix_numbers` the prefix of each. Only whole blocks are shared, and
    one token at least is computed.
    """
    firsts: dict[int, Sequence[int]] = {}
    cached = 0
    for prompt, number in zip(prompts, prefix_numbers, strict=True):
        first = firsts.setdefault(number, prompt)
        if first is prompt:
            continue
        common = 0
        for mine, other in zip(prompt[:-1], first, strict=False):
            if mine != other:
                break
            common += 1
        cached += common // block_tokens * block_tokens
    return cached
