"""Goal: an adapter is compared with the stored base model, by the headers of both alone."""

from pathlib import Path
from random import Random

import pytest

from core.clock import SystemClock
from registry.adapters.adapter_check import WEIGHTS_NAME, InvalidAdapterError
from registry.adapters.adapter_files import (
    AdapterBase,
    check_adapter_files,
    folder_reader,
    stored_reader,
)
from registry.manifests.model_objects import file_key
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import ObjectStore
from tests.support.lora_adapters import base_weights, write_adapter
from tests.support.signed_models import StoredModel, model_contents, store_model


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return LocalObjectStore(tmp_path / "objects", clock=SystemClock())


def base_of(stored: StoredModel, rank_max: int = 16) -> AdapterBase:
    return AdapterBase(stored.version, stored.manifest, rank_max)


def store_base(objects: ObjectStore, weights: bytes) -> StoredModel:
    return store_model(objects, {"config.json": b"{}", "model.safetensors": weights})


def test_folder_and_stored_files_of_an_adapter_are_checked_alike(
    objects: ObjectStore, tmp_path: Path
) -> None:
    base = base_of(store_base(objects, base_weights()))
    folder = write_adapter(tmp_path / "adapter", 1)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    stored = store_model(objects, files, base=base.version)

    for read in (folder_reader(folder), stored_reader(objects, stored.manifest)):
        assert check_adapter_files(read, base, objects).rank_max == 8


def test_an_unknown_module_is_refused(objects: ObjectStore, tmp_path: Path) -> None:
    weights = base_weights().replace(b".layers.1.self_attn.v_proj", b".layers.1.self_attn.x_proj")
    base = base_of(store_base(objects, weights))
    folder = write_adapter(tmp_path / "adapter", 1)
    with pytest.raises(InvalidAdapterError, match=r"no module 'model.layers.1.self_attn.v_proj'"):
        check_adapter_files(folder_reader(folder), base, objects)


def test_files_that_are_missing_or_no_safetensors_are_refused(
    objects: ObjectStore, tmp_path: Path
) -> None:
    stored = store_base(objects, base_weights())
    folder = write_adapter(tmp_path / "adapter", 1)
    other = base_of(store_model(objects, model_contents(Random(1))))
    with pytest.raises(InvalidAdapterError, match="of the base: The weights are no safetensors"):
        check_adapter_files(folder_reader(folder), other, objects)
    for file in stored.manifest.files:
        objects.delete(file_key(file.sha256))
    with pytest.raises(InvalidAdapterError, match="of the base is not stored"):
        check_adapter_files(folder_reader(folder), base_of(stored), objects)
    (folder / WEIGHTS_NAME).unlink()
    with pytest.raises(InvalidAdapterError, match=f"An adapter has .* and {WEIGHTS_NAME}"):
        check_adapter_files(folder_reader(folder), base_of(stored), objects)
