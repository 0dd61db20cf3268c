"""Goal: `millrace up` signs and stores each model once, and notices when it has to do so again."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.stack.data_folder import (
    PUSHED_MODELS_FILE,
    SIGNING_KEY_FILE,
    TRUSTED_KEYS_FILE,
    lock_data_folder,
)
from cli.stack.model_requests import ModelRequest, model_requests
from cli.stack.processes.role_children import replica_env
from cli.stack.pushed_models import ModelPushes, signing_key
from cli.stack.served_models import ServedModel
from core.errors import SettingsError
from registry.manifests.manifest import InvalidManifestError, decode_manifest, version_of
from registry.manifests.model_objects import file_key, manifest_key
from registry.signing.keys import PublicKey, SigningKey
from registry.signing.model_signature import verify_version
from registry.sources.errors import ModelSourceError
from registry.sources.source_names import FolderSource, HubSource, S3Source
from tests.support.model_hub import COMMIT, ModelHub, serve_hub

CONFIG = b'{"architectures": ["LlamaForCausalLM"]}'


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    with lock_data_folder(tmp_path / "data"):
        yield tmp_path / "data"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes(CONFIG)
    (folder / "model.safetensors").write_bytes(os.urandom(5000))
    return folder


class Pushing:
    """Pushes models to one data folder, and keeps what was transferred."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.env: dict[str, str] = {}
        self.transfers: list[str] = []

    def push(self, request: ModelRequest) -> ServedModel:
        self.transfers.clear()

        def report(what: str, _done: int, _total: int) -> None:
            self.transfers.append(what)

        return ModelPushes(data=self.data, env=self.env, report=report).push(request)

    def object(self, key: str) -> Path:
        return self.data / "objects" / key


@pytest.fixture
def pushing(data: Path) -> Pushing:
    return Pushing(data)


def request_of(folder: Path, options: Path | None = None) -> ModelRequest:
    return ModelRequest("my-model", FolderSource(folder), options)


def test_a_replica_gets_version_key_and_cache_and_no_folder(pushing: Pushing, folder: Path) -> None:
    model = pushing.push(request_of(folder))

    data = pushing.data
    assert replica_env(model, {}, data) == {
        "MILLRACE_GPU_POOL": f"my-model-{model.version[:12]}",
        "MILLRACE_ENGINE_KIND": "vllm",
        "MILLRACE_ENGINE_MODEL_NAME": "my-model",
        "MILLRACE_ENGINE_MODEL_VERSION": model.version,
        "MILLRACE_ENGINE_TRUSTED_KEYS": str(data / TRUSTED_KEYS_FILE),
        "MILLRACE_ENGINE_WEIGHT_CACHE": str(data / "weights"),
    }
    assert model.endpoints == ("/v1/chat/completions", "/v1/completions")
    assert model.signed is not None
    assert version_of(model.signed.manifest) == model.version
    trusted = PublicKey.from_pem((data / TRUSTED_KEYS_FILE).read_bytes())
    files = decode_manifest(model.signed.manifest).files
    keys = {trusted.key_id: trusted}
    verify_version(model.signed.bundle, keys, version=model.version, files=files)


def test_a_second_start_transfers_nothing(pushing: Pushing, folder: Path) -> None:
    first = pushing.push(request_of(folder))
    assert pushing.transfers

    assert pushing.push(request_of(folder)) == first
    assert not pushing.transfers


def test_a_changed_file_is_another_version(pushing: Pushing, folder: Path) -> None:
    first = pushing.push(request_of(folder))
    (folder / "model.safetensors").write_bytes(os.urandom(5000))
    assert pushing.push(request_of(folder)).version != first.version


def test_options_are_part_of_the_version(pushing: Pushing, folder: Path, tmp_path: Path) -> None:
    first = pushing.push(request_of(folder))
    (options := tmp_path / "options.toml").write_text("max_model_len = 512")

    second = pushing.push(request_of(folder, options))

    assert second.version != first.version
    assert second.signed is not None
    assert decode_manifest(second.signed.manifest).engine_options == {"max_model_len": 512}


@pytest.mark.parametrize("lost", ["file", "manifest", "signature", "record", "key"])
def test_what_was_lost_is_stored_again(lost: str, pushing: Pushing, folder: Path) -> None:
    first = pushing.push(request_of(folder))
    assert first.signed is not None
    (signature,) = pushing.object(f"models/signatures/{first.version}").iterdir()
    weights = decode_manifest(first.signed.manifest).files[1]
    paths = {
        "file": pushing.object(file_key(weights.sha256)),
        "manifest": pushing.object(manifest_key(first.version)),
        "signature": signature,
        "record": pushing.data / PUSHED_MODELS_FILE,
        "key": pushing.data / SIGNING_KEY_FILE,
    }
    paths[lost].unlink()

    second = pushing.push(request_of(folder))

    assert second.version == first.version
    assert all(path.exists() for path in paths.values())


def test_the_signing_key_is_private_and_kept(data: Path) -> None:
    first = signing_key(data)
    assert stat.S_IMODE((data / SIGNING_KEY_FILE).stat().st_mode) == 0o600
    assert signing_key(data).public.key_id == first.public.key_id


def test_keys_that_the_operator_trusts_stay(data: Path) -> None:
    other = SigningKey.generate().public.pem
    (data / TRUSTED_KEYS_FILE).write_bytes(other)
    key = signing_key(data)
    assert (data / TRUSTED_KEYS_FILE).read_bytes() == key.public.pem + other
    signing_key(data)
    assert (data / TRUSTED_KEYS_FILE).read_bytes() == key.public.pem + other


def test_a_damaged_key_is_one_line(data: Path) -> None:
    (data / SIGNING_KEY_FILE).write_bytes(b"-----BEGIN PRIVATE KEY-----\nsecret")
    with pytest.raises(SettingsError, match="holds no signing key") as refused:
        signing_key(data)
    assert "secret" not in str(refused.value)


def test_a_model_of_the_hub_is_fetched_once(pushing: Pushing) -> None:
    request = ModelRequest("tiny", HubSource("org/tiny"))
    hub = ModelHub({"config.json": CONFIG, "model.safetensors": os.urandom(5000)})
    with serve_hub(hub):
        pushing.env["HF_ENDPOINT"] = hub.url
        first = pushing.push(request)
    assert first.signed is not None
    assert decode_manifest(first.signed.manifest).source == f"hf://org/tiny@{COMMIT}"
    assert not [path for path in (pushing.data / "downloads").iterdir() if path.is_dir()]

    assert pushing.push(request) == first  # the hub is gone


def test_a_refused_model_leaves_no_version(pushing: Pushing, folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(InvalidManifestError, match="may not be part of a model"):
        pushing.push(request_of(folder))
    assert not list(pushing.object("").rglob("*.bin"))
    assert not pushing.object("models/manifests").exists()
    assert not (pushing.data / PUSHED_MODELS_FILE).exists()


def test_models_are_folders_buckets_and_repositories(folder: Path, tmp_path: Path) -> None:
    (options := tmp_path / "o.toml").touch()
    texts = [f"a={folder}", "b=s3://bucket/models/b", "c=hf://org/c@v1", "d=org/d", "org/e"]
    assert model_requests(texts, [f"a={options}"]) == (
        ModelRequest("a", FolderSource(folder), options),
        ModelRequest("b", S3Source("bucket", "models/b")),
        ModelRequest("c", HubSource("org/c", "v1")),
        ModelRequest("d", HubSource("org/d")),
        ModelRequest("org/e", HubSource("org/e")),
    )


@pytest.mark.parametrize(
    ("models", "options", "message"),
    [
        (["a"], [], "needs NAME=PATH"),
        (["a="], [], "needs NAME=PATH"),
        (["=x"], [], "needs a name"),
        (["a=org/x", "a=org/y"], [], "given once"),
        (["a=/nowhere/at-all"], [], "no config.json"),
        (["a=org/x"], ["b=f"], "no --model has this name"),
        (["a=org/x"], ["f"], "give NAME=FILE"),
        (["a=ftp://x/y"], [], "is no source"),
    ],
)
def test_what_names_no_model_is_refused(
    models: list[str], options: list[str], message: str
) -> None:
    with pytest.raises((SettingsError, ModelSourceError), match=message):
        model_requests(models, options)
