"""Goal: a model that does not fit is refused with its numbers, and a plan sizes its cache."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.device_memory import (
    DeviceMemory,
    parse_available,
    parse_group_left,
    smallest_gpu_bytes,
)
from gpu_consumers.engines.vllm.memory_check import HOST_CACHE_VARIABLE, memory_check
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason
from registry.manifests.manifest import Manifest, ManifestFile
from tests.support.weight_files import entry, header_bytes, llama_config, write_model

GIB, MIB = 2**30, 2**20
FILES = (ManifestFile("config.json", 2, "0" * 64),)
CONFIG = llama_config(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    vocab_size=128,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with 16 MiB of weights; a token of its KV cache has 512 bytes."""
    size = 16 * MIB
    weights = header_bytes({"model.norm.weight": entry("BF16", [size // 2], 0, size)}, size)
    return write_model(tmp_path / "model", CONFIG, weights)


def check(
    folder: Path,
    device: DeviceMemory | None,
    options: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    **fields: Any,
) -> int | None:
    settings = EngineSettings(kind="vllm", model_name="m", model_path=folder, **fields)
    manifest = Manifest(FILES, engine_options=options or {})
    return memory_check(settings, lambda: device, environ or {})(manifest, folder)


def refusal(*arguments: Any, **fields: Any) -> str:
    with pytest.raises(ModelRefusedError) as refused:
        check(*arguments, **fields)
    assert refused.value.reason == RefusalReason.MEMORY
    return str(refused.value)


def test_a_gpu_gets_the_kv_cache_of_the_plan(folder: Path) -> None:
    small = check(folder, DeviceMemory(8 * GIB, is_gpu=True))
    large = check(folder, DeviceMemory(12 * GIB, is_gpu=True))
    assert small is not None
    assert large is not None
    assert 0 < small < large < 12 * GIB
    share = check(folder, DeviceMemory(12 * GIB, is_gpu=True), vllm_gpu_memory_utilization=0.5)
    assert share is not None
    assert share < large


def test_a_gpu_that_is_too_small_is_named_with_its_numbers(folder: Path) -> None:
    text = refusal(folder, DeviceMemory(256 * MIB, is_gpu=True))
    assert "0.02 GiB of weights" in text
    assert "90% of 0.25 GiB" in text


def test_adapters_of_the_settings_count(folder: Path) -> None:
    size = 64 * 64 * 2
    name = "model.layers.0.self_attn.q_proj.weight"
    weights = header_bytes({name: entry("BF16", [64, 64], 0, size)}, size)
    write_model(folder, CONFIG, weights)
    device = DeviceMemory(8 * GIB, is_gpu=True)
    without = check(folder, device)
    having = check(folder, device, adapters_max=256, adapter_rank_max=512)
    assert without is not None
    assert having is not None
    assert without - having >= 256 * 512 * (64 + 64) * 2 - 16 * 512


def test_a_host_must_hold_weights_and_kv_cache(folder: Path) -> None:
    enough = GIB + 16 * MIB
    assert check(folder, DeviceMemory(enough, is_gpu=False)) is None
    text = refusal(folder, DeviceMemory(enough - 1, is_gpu=False))
    assert "1.00 GiB of KV cache in 1 processes = 1.02 GiB" in text
    assert "2.00 GiB of KV cache" in refusal(
        folder, DeviceMemory(enough, is_gpu=False), vllm_kv_cache_gib=2
    )
    environ = {HOST_CACHE_VARIABLE: "3"}
    assert "3.00 GiB of KV cache" in refusal(
        folder, DeviceMemory(enough, is_gpu=False), environ=environ
    )


def test_the_longest_sequence_must_fit_the_kv_cache_of_a_host(folder: Path) -> None:
    device, longest = DeviceMemory(64 * GIB, is_gpu=False), GIB // 512
    assert check(folder, device, {"max_model_len": longest}) is None
    assert f"{longest + 1} tokens" in refusal(folder, device, {"max_model_len": longest + 1})
    assert check(folder, device, {"max_model_len": -1}) is None


def test_what_is_not_known_refuses_nothing(folder: Path) -> None:
    assert check(folder, None) is None
    (folder / "config.json").write_bytes(b"{}")
    assert check(folder, DeviceMemory(1, is_gpu=False)) is None


def test_available_memory_of_host_and_control_group() -> None:
    assert parse_available("MemTotal: 9 kB\nMemAvailable:    5 kB\n") == 5 * 1024
    assert parse_available("MemTotal: 9 kB\n") is None
    assert parse_group_left("max\n", "5\n", "") is None
    stat = "anon 400\ninactive_file 100\nactive_file 50\n"
    assert parse_group_left("1000\n", "550\n", stat) == 600
    assert parse_group_left("100\n", "500\n", "") == 0


class Nvml:
    """The part of `pynvml` that is used, with two GPUs."""

    NVMLError = type("NVMLError", (Exception,), {})
    nvmlMemory_v2 = 2  # noqa: N815
    sizes = (80 * GIB, 40 * GIB)

    def __init__(self) -> None:
        self.is_open = False

    def nvmlInit(self) -> None:  # noqa: N802
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.sizes)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index >= len(self.sizes):
            raise self.NVMLError
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        return ["GPU-a", "GPU-b"].index(uuid)

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int) -> SimpleNamespace:  # noqa: N802
        assert self.is_open
        assert version == self.nvmlMemory_v2
        return SimpleNamespace(total=self.sizes[handle], reserved=GIB)


@pytest.mark.parametrize(
    ("visible", "size"),
    [
        (None, 39),
        ("0", 79),
        ("0, 1", 39),
        ("GPU-b", 39),
        ("", None),
        ("7", None),
        ("GPU-c", None),
    ],
)
def test_smallest_visible_gpu(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, size: int | None
) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert smallest_gpu_bytes(visible) == (None if size is None else size * GIB)
    assert not nvml.is_open


def test_without_nvml_no_gpu_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert smallest_gpu_bytes(None) is None
