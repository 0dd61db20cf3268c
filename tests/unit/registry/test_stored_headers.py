"""Goal: a stored version is planned as its folder is, without reading its weights."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from registry.manifests.manifest import Manifest, ManifestFile
from registry.manifests.model_objects import file_key
from registry.memory_plan.model_folder_plan import plan_of_folder
from registry.memory_plan.safetensors_header import InvalidWeightsError
from registry.publishing.stored_headers import copy_headers
from tests.support.memory_objects import MemoryStore
from tests.support.weight_files import entry, header_bytes, llama_config, write_model

WEIGHTS_BYTES = 4 * 2**20
DEVICE_BYTES = 80 * 2**30


def stored(model: Path) -> tuple[MemoryStore, Manifest]:
    objects, files = MemoryStore(), []
    for path in sorted(model.iterdir()):
        data = path.read_bytes()
        digest = sha256(data).hexdigest()
        objects.objects[file_key(digest)] = data
        files.append(ManifestFile(path.name, len(data), digest))
    return objects, Manifest(tuple(files))


def weights(name_chars: int = 1) -> bytes:
    name = "model.norm.weight" + "x" * name_chars
    return header_bytes(
        {name: entry("BF16", [WEIGHTS_BYTES // 2], 0, WEIGHTS_BYTES)}, WEIGHTS_BYTES
    )


@pytest.mark.parametrize("name_chars", [1, 300_000])
def test_headers_give_the_plan_of_the_folder(tmp_path: Path, name_chars: int) -> None:
    model = write_model(tmp_path / "model", llama_config(), weights(name_chars))
    (model / "tokenizer.json").write_text("{}")
    objects, manifest = stored(model)
    copied = tmp_path / "copied"
    copied.mkdir()

    copy_headers(objects, manifest, copied)

    assert {path.name for path in copied.iterdir()} == {"config.json", "model.safetensors"}
    assert (copied / "model.safetensors").stat().st_blocks * 512 < WEIGHTS_BYTES
    assert plan_of_folder(copied, {}, DEVICE_BYTES) == plan_of_folder(model, {}, DEVICE_BYTES)


def test_a_header_that_lies_about_its_length_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", llama_config(), b"\xff" * 64)
    objects, manifest = stored(model)
    copied = tmp_path / "copied"
    copied.mkdir()
    copy_headers(objects, manifest, copied)
    with pytest.raises(InvalidWeightsError):
        plan_of_folder(copied, {}, DEVICE_BYTES)


def test_the_index_is_copied_and_folders_below_are_not(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", llama_config(), weights())
    index = {"weight_map": {"model.norm.weightx": "model.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    objects, manifest = stored(model)
    below = ManifestFile("original/model.safetensors", 64, "0" * 64)  # in no store
    copied = tmp_path / "copied"
    copied.mkdir()
    copy_headers(objects, Manifest((*manifest.files, below)), copied)
    assert plan_of_folder(copied, {}, DEVICE_BYTES).stored_bytes == WEIGHTS_BYTES
