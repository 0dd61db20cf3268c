"""Request bodies of many sequences, and of many log probabilities."""

from typing import Any, Final

USER: Final = {"role": "user", "content": "Hi"}


def sequences_of_chats() -> dict[str, dict[str, Any]]:
    """Return bodies of as many long sequences as one body may have."""
    base = {"n": 128, "max_tokens": 1_900, "ignore_eos": True}
    top = {"logprobs": True, "top_logprobs": 20}
    long_text = {"role": "user", "content": "word " * 600}  # 1,800 tokens
    return {
        "128 answers": base,
        "128 answers with bad words": base | {"bad_words": [f"word {n}" for n in range(256)]},
        "128 answers with biases": base | {"logit_bias": {str(n): 1.0 for n in range(1_000)}},
        "128 answers with log probabilities": base | top,
        "12 answers with log probabilities": base | top | {"n": 12, "max_tokens": 600},
        "log probabilities of tokens": base
        | {"n": 12, "max_tokens": 600, "logprobs": True, "logprob_token_ids": [*range(20)]},
        "log probabilities of a prompt for 128 answers": base
        | {"messages": [long_text], "max_tokens": 1, "prompt_logprobs": 20},
        "128 answers with repetitions": base
        | {
            "repetition_detection": {"max_pattern_size": 900, "min_count": 2, "min_pattern_size": 1}
        },
        "2,048 messages": {"messages": [USER] * 2_048, "max_tokens": 1},
        "log probabilities of a prompt": {"messages": [long_text], "prompt_logprobs": 20},
    }


def sequences_of_completions() -> dict[str, dict[str, Any]]:
    """Return completions of many sequences, or with many log probabilities."""
    return {
        "128 long prompts": {"prompt": ["word " * 600] * 128},
        "128 prompts of 1,900 tokens": {
            "prompt": [[n, *range(10, 1_000), *range(10, 918)] for n in range(10, 138)]
        },
        "128 prompts with long answers": {
            "prompt": ["a"] * 128,
            "max_tokens": 1_900,
            "ignore_eos": True,
        },
        "128 echoes with log probabilities": {
            "prompt": [[n, *range(10, 1_000)] for n in range(10, 138)],
            "echo": True,
            "logprobs": 20,
            "max_tokens": 1,
        },
        "an echo with log probabilities": {
            "prompt": "word " * 600,
            "echo": True,
            "logprobs": 20,
            "n": 20,
            "max_tokens": 1,
        },
        "128 prompts with log probabilities": {
            "prompt": ["a"] * 128,
            "logprobs": 20,
            "max_tokens": 400,
            "ignore_eos": True,
        },
        "20 echoes of 6 prompts": {
            "prompt": [[n, *range(10, 1_000)] for n in range(10, 16)],
            "echo": True,
            "logprobs": 20,
            "n": 20,
            "max_tokens": 1,
        },
    }
