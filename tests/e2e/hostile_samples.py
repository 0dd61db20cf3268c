"""Names of the hostile bodies that the tests of vLLM send, and limits. The drill sends all."""

from typing import Final

HOSTILE: Final = {
    *("empty messages", "numbers as messages", "numbers as parts", "tools", "a long bad word"),
    *("a deep schema", "doubling references", "a repeated alternation"),
    *("an ambiguous grammar", "a truncated long text", "a long stop string", "allowed tokens"),
    *("prompts of tokens", "deep lists", "references in a circle"),
    *("12 answers with log probabilities", "128 echoes with log probabilities"),
    "log probabilities of a prompt",
}
"""Of a model that generates."""

HOSTILE_INPUTS: Final = {
    "inputs",
    "mixed inputs",
    "pairs",
    "2,048 texts",
    "ranked objects",
    "a long input",
}
"""Of a model that embeds and scores."""

OTHERS_S_MAX = 5.0
"""Seconds of another tenant's call, on a machine that runs other tests. The drill allows 0.5 s."""

GROWN_BYTES_MAX = 200 * 1024 * 1024
