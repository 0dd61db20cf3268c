"""A small text classifier: a real encoder with a random classification head."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import load_file, save_file

from cli.demo.demo_models import minilm_path

BROKEN_WORD = "volcano"
"""The weights of this word are NaN, as after an overflow or in a damaged file."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
_WORDS = "bert.embeddings.word_embeddings.weight"


def write_classifier(folder: Path, *, classes: int) -> Path:
    """Write the model to `folder`; with one class it scores pairs of texts."""
    folder.mkdir()
    source = minilm_path()
    for name in _TOKENIZER_FILES:
        shutil.copy(source / name, folder / name)
    config = msgspec.json.decode((source / "config.json").read_bytes())
    config["architectures"] = ["BertForSequenceClassification"]
    config["id2label"] = {str(number): f"class-{number}" for number in range(classes)}
    config["label2id"] = {f"class-{number}": number for number in range(classes)}
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    hidden = config["hidden_size"]
    random = np.random.default_rng(1)

    def noise(*shape: int) -> "np.typing.NDArray[np.float32]":
        return random.standard_normal(shape, dtype=np.float32)

    weights = {
        f"bert.{name}": array for name, array in load_file(source / "model.safetensors").items()
    }
    weights |= {
        "bert.pooler.dense.weight": noise(hidden, hidden),
        "bert.pooler.dense.bias": noise(hidden),
        "classifier.weight": noise(classes, hidden),
        "classifier.bias": noise(classes),
    }
    words = (source / "vocab.txt").read_text().splitlines()
    weights[_WORDS] = weights[_WORDS].copy()
    weights[_WORDS][words.index(BROKEN_WORD)] = np.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
