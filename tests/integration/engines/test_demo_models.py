"""Goal: demo models are complete, made once, and reproducible."""

from pathlib import Path

from cli.demo.demo_models import ensure_tiny_llama, minilm_path
from gpu_consumers.engines.model_kind import runner_of_folder


def test_tiny_llama_is_made_once_and_reproducibly(tmp_path: Path) -> None:
    first = ensure_tiny_llama(tmp_path / "models" / "a")
    second = ensure_tiny_llama(tmp_path / "models" / "b")
    content = {path.name: path.read_bytes() for path in first.iterdir()}
    assert content == {path.name: path.read_bytes() for path in second.iterdir()}
    written_ns = (first / "config.json").stat().st_mtime_ns
    assert ensure_tiny_llama(first) == first
    assert (first / "config.json").stat().st_mtime_ns == written_ns
    assert {path.name for path in first.parent.iterdir()} == {"a", "b"}  # nothing half made


def test_each_model_has_its_runner(tmp_path: Path) -> None:
    assert runner_of_folder(ensure_tiny_llama(tmp_path / "tiny")) == "generate"
    assert runner_of_folder(minilm_path()) == "pooling"
