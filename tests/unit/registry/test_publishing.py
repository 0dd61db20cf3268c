"""Goal: a published version has every object, or none of a manifest or signature."""

import errno
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from core.clock import SystemClock
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.engine_arguments import ModelToLoad, vllm_arguments
from registry.engine_options.engine_options import InvalidOptionError
from registry.engine_options.sampling_defaults import SAMPLING_DEFAULTS
from registry.manifests.manifest import (
    InvalidManifestError,
    decode_manifest,
    encode_manifest,
    version_of,
)
from registry.manifests.model_objects import (
    file_key,
    manifest_key,
    provenance_key,
    signature_key,
)
from registry.publishing.file_uploads import FileUploads, ModelFileChangedError, missing_files
from registry.publishing.folder_manifest import describe_folder, read_options
from registry.publishing.published_version import (
    PublishedVersion,
    publish_version,
    read_signature,
    sign_version,
)
from registry.signing.keys import SigningKey
from registry.signing.model_signature import InvalidSignatureError, sign_files, verify_version
from storage.objects.errors import ObjectStoreFullError
from storage.objects.local_object_store import LocalObjectStore, LocalUpload
from storage.objects.object_store import ObjectStore, StoredObject, read_object, write_object

KEY = SigningKey.generate()
SAMPLING = b'{"temperature": 0.6, "max_new_tokens": 512, "do_sample": true, "top_p": null}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes(b"{}")
    (folder / "generation_config.json").write_bytes(SAMPLING)
    (folder / "model.safetensors").write_bytes(os.urandom(3 * 1024 * 1024))
    (folder / "tokenizer.json").write_bytes(b"{}")  # the content of config.json
    return folder


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return LocalObjectStore(tmp_path / "objects", clock=SystemClock())


def publish(objects: ObjectStore, folder: Path) -> PublishedVersion:
    manifest = describe_folder(folder)
    return publish_version(objects, folder, manifest, [sign_version(KEY, manifest)])


def keys(objects: ObjectStore, prefix: str = "models/") -> set[str]:
    return {info.key for info in objects.list(prefix)}


def test_every_object_of_a_version_is_stored_once(folder: Path, objects: ObjectStore) -> None:
    published = publish(objects, folder)

    version = published.version
    signature = signature_key(version, KEY.public.key_id)
    files = {path.read_bytes() for path in folder.iterdir()}
    assert keys(objects) == {
        *(file_key(sha256(data).hexdigest()) for data in files),
        manifest_key(version),
        signature,
    }
    for data in files:
        assert read_object(objects, file_key(sha256(data).hexdigest())) == data
    manifest = read_object(objects, manifest_key(version))
    assert version_of(manifest) == version
    trusted = {KEY.public.key_id: KEY.public}
    bundle = read_object(objects, signature)
    verify_version(bundle, trusted, version=version, files=decode_manifest(manifest).files)


def test_a_second_push_sends_nothing(folder: Path, objects: ObjectStore) -> None:
    first = publish(objects, folder)
    assert first.sent_bytes == sum(len(data) for data in {p.read_bytes() for p in folder.iterdir()})

    second = publish(objects, folder)

    assert (second.version, second.sent_bytes) == (first.version, 0)


def test_a_truncated_object_is_replaced(folder: Path, objects: ObjectStore) -> None:
    data = (folder / "model.safetensors").read_bytes()
    key = file_key(sha256(data).hexdigest())
    write_object(objects, key, data[:-1])

    publish(objects, folder)

    assert read_object(objects, key) == data


def test_an_altered_object_of_equal_size_is_replaced_on_request(
    folder: Path, objects: ObjectStore
) -> None:
    first = publish(objects, folder)
    data = (folder / "model.safetensors").read_bytes()
    key = file_key(sha256(data).hexdigest())
    write_object(objects, key, data[:-1] + bytes([data[-1] ^ 1]))

    assert publish(objects, folder).sent_bytes == 0
    signatures = first.signatures
    repaired = publish_version(objects, folder, first.manifest, signatures, replaces=True)

    assert repaired.sent_bytes == len(data)
    assert read_object(objects, key) == data


def edit(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"!")


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (edit, ModelFileChangedError),
        (grow, ModelFileChangedError),
        (link, OSError),
        (remove, FileNotFoundError),
    ],
)
def test_a_file_that_changes_before_its_upload_leaves_no_version(
    change: Callable[[Path], None], error: type[Exception], folder: Path, objects: ObjectStore
) -> None:
    manifest = describe_folder(folder)
    change(folder / "model.safetensors")

    with pytest.raises(error):
        publish_version(objects, folder, manifest, [sign_version(KEY, manifest)])

    weights = next(file for file in manifest.files if file.path == "model.safetensors")
    assert not keys(objects, "models/manifests/") | keys(objects, "models/signatures/")
    assert file_key(weights.sha256) not in keys(objects)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Let the local store fail as a full disk does, until the returned function is called."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("storage.objects.local_object_store.os.fsync", fail)
        yield patch.undo


def test_a_full_disk_leaves_no_version_and_the_next_push_goes_on(
    folder: Path, objects: ObjectStore, full_disk: Callable[[], None], tmp_path: Path
) -> None:
    with pytest.raises(ObjectStoreFullError):
        publish(objects, folder)

    assert not keys(objects, "models/manifests/") | keys(objects, "models/signatures/")
    assert not list((tmp_path / "objects" / ".temporary").iterdir())
    full_disk()
    assert publish(objects, folder).version


def test_one_failed_file_stops_the_others(
    folder: Path, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = describe_folder(folder)
    edit(folder / "config.json")
    edit(folder / "tokenizer.json")
    published: list[str] = []
    complete = LocalUpload.complete

    def record(upload: LocalUpload, *, if_absent: bool = False) -> StoredObject:
        published.append(upload.key)
        return complete(upload, if_absent=if_absent)

    monkeypatch.setattr(LocalUpload, "complete", record)

    with pytest.raises(ModelFileChangedError):
        FileUploads(objects, folder).run(manifest)

    assert keys(objects) == set(published)
    small = next(file for file in manifest.files if file.path == "config.json")
    assert file_key(small.sha256) not in published


def test_missing_files_are_those_absent_or_of_another_size(
    folder: Path, objects: ObjectStore
) -> None:
    manifest = describe_folder(folder)
    assert {file.sha256 for file in missing_files(objects, manifest)} == {
        file.sha256 for file in manifest.files
    }
    publish(objects, folder)
    assert not missing_files(objects, manifest)
    weights = next(file for file in manifest.files if file.path == "model.safetensors")
    objects.delete(file_key(weights.sha256))
    assert missing_files(objects, manifest) == [weights]


def test_a_version_needs_a_signature_that_lets_it_load(folder: Path, objects: ObjectStore) -> None:
    manifest = describe_folder(folder)
    of_files_alone = sign_files(KEY, "model", manifest.files)
    found = read_signature(manifest, of_files_alone, KEY.public)

    assert not found.lets_load
    with pytest.raises(InvalidSignatureError, match="sign it"):
        publish_version(objects, folder, manifest, [found])
    assert not keys(objects)


def test_a_signature_of_the_files_alone_replaces_none_that_lets_load(
    folder: Path, objects: ObjectStore
) -> None:
    manifest = describe_folder(folder)
    of_files_alone = sign_files(KEY, "model", manifest.files)
    signatures = [
        sign_version(KEY, manifest),
        read_signature(manifest, of_files_alone, KEY.public),
    ]
    published = publish_version(objects, folder, manifest, signatures)

    key_id = KEY.public.key_id
    loading = read_object(objects, signature_key(published.version, key_id))
    verify_version(loading, {key_id: KEY.public}, version=published.version, files=manifest.files)
    assert read_object(objects, provenance_key(published.version, key_id)) == of_files_alone


def test_a_signature_that_lets_load_is_kept_and_an_altered_one_replaced(
    folder: Path, objects: ObjectStore
) -> None:
    first = publish(objects, folder)
    name = signature_key(first.version, KEY.public.key_id)
    stored = read_object(objects, name)

    again = publish(objects, folder)
    assert read_object(objects, name) == stored == again.signatures[0].bundle

    altered = (b"{}", sign_files(KEY, "model", first.manifest.files))
    for bundle in altered:
        write_object(objects, name, bundle)
        repaired = publish(objects, folder)
        assert read_object(objects, name) == repaired.signatures[0].bundle
        trusted = {KEY.public.key_id: KEY.public}
        files = first.manifest.files
        verify_version(read_object(objects, name), trusted, version=first.version, files=files)


def test_a_signature_made_elsewhere_is_verified(folder: Path) -> None:
    manifest = describe_folder(folder)
    made = sign_version(KEY, manifest)
    assert read_signature(manifest, made.bundle, KEY.public).lets_load
    with pytest.raises(InvalidSignatureError):
        read_signature(manifest, made.bundle, SigningKey.generate().public)
    edit(folder / "model.safetensors")
    with pytest.raises(InvalidSignatureError):
        read_signature(describe_folder(folder), made.bundle, KEY.public)


def test_sampling_defaults_are_those_of_the_authors(folder: Path) -> None:
    assert describe_folder(folder).sampling == {"temperature": 0.6, "max_new_tokens": 512}
    (folder / "generation_config.json").write_bytes(b'{"top_k": 40.0, "min_p": 0.1, "top_p": "x"}')
    with pytest.raises(InvalidOptionError, match="`top_p` must be a number"):
        encode_manifest(describe_folder(folder))
    (folder / "generation_config.json").write_bytes(b"[]")
    with pytest.raises(InvalidManifestError, match="not a JSON object"):
        describe_folder(folder)


def test_what_a_push_takes_from_generation_config_also_starts(folder: Path) -> None:
    """Every name that a manifest may have is one that a replica passes on to vLLM."""
    fields = dict.fromkeys(SAMPLING_DEFAULTS, 1) | {"do_sample": True, "eos_token_id": [1, 2]}
    (folder / "generation_config.json").write_bytes(msgspec.json.encode(fields))
    manifest = decode_manifest(encode_manifest(describe_folder(folder)))
    assert manifest.sampling == dict.fromkeys(SAMPLING_DEFAULTS, 1)
    env = {"KIND": "vllm", "MODEL_NAME": "m", "MODEL_PATH": str(folder)}
    settings = EngineSettings.from_env({f"MILLRACE_ENGINE_{name}": env[name] for name in env})
    arguments = vllm_arguments(settings, ModelToLoad(folder=folder, sampling=manifest.sampling))
    given = msgspec.json.encode(manifest.sampling).decode()
    assert f"--override-generation-config={given}" in arguments


def test_code_makes_another_version_and_needs_permission(folder: Path) -> None:
    assert not describe_folder(folder, allows_code=True).allows_code
    (folder / "modeling_x.py").write_bytes(b"import os")
    with pytest.raises(InvalidManifestError, match="operator has to allow"):
        describe_folder(folder)
    assert describe_folder(folder, allows_code=True).allows_code


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("o.toml", 'max_model_len = 512\ndtype = "float32"\n'),
        ("o.json", '{"max_model_len": 512, "dtype": "float32"}'),
    ],
)
def test_options_are_read_as_toml_or_json(name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert read_options(path) == {"max_model_len": 512, "dtype": "float32"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("o.toml", b"["),
        ("o.toml", b"\xff"),
        ("o.json", b"[1]"),
        ("o.json", b""),
        ("o.json", b"[" * 9999),
    ],
)
def test_a_file_without_options_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidOptionError):
        read_options(path)
