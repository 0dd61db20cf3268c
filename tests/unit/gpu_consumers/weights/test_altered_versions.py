"""Goal: a version that is altered, unsigned, revoked or retired never reaches the loader (P22).

Each alteration runs with 50 seeds.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest

from core.clock import SystemClock
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason
from gpu_consumers.weights.model_loading import ModelLoader, fits_always
from gpu_consumers.weights.weight_cache import WeightCache
from registry.manifests.manifest import Manifest, encode_manifest, version_of
from registry.signing.model_signature import sign_files
from storage.objects.object_store import read_object, write_object
from tests.support.signed_models import (
    listed_files,
    model_contents,
    store_model,
    store_signature,
)
from tests.unit.gpu_consumers.weights.replica_world import (
    KEY,
    OTHER,
    SECOND,
    World,
    flip_byte,
    go_on,
)


def signatures(world: World) -> Path:
    return world.folder / "objects/models/signatures" / world.model.version


def test_an_unsigned_version(worlds: Iterator[World]) -> None:
    for world in worlds:
        (signatures(world) / KEY.public.key_id).unlink()
        world.refused(RefusalReason.UNSIGNED)


def test_a_version_signed_by_a_key_that_is_not_trusted(worlds: Iterator[World]) -> None:
    for world in worlds:
        contents = model_contents(world.random)
        model = world.add(contents, OTHER)
        assert OTHER.public.key_id in world.refused(RefusalReason.UNTRUSTED_KEY, model.version)


def test_a_signature_of_another_key_under_the_name_of_a_trusted_one(
    worlds: Iterator[World],
) -> None:
    for world in worlds:
        bundle = sign_files(OTHER, world.model.version, world.model.manifest.files)
        if world.random.random() < 0.5:
            bundle = bundle.replace(OTHER.public.key_id.encode(), KEY.public.key_id.encode())
        store_signature(world.objects, world.model.version, KEY, bundle)
        world.refused(RefusalReason.SIGNATURE)


def test_a_revoked_key(worlds: Iterator[World]) -> None:
    for world in worlds:
        world.registry.revoked.add(KEY.public.key_id)
        assert KEY.public.key_id in world.refused(RefusalReason.REVOKED_KEY)


def test_a_key_that_is_revoked_while_the_model_is_staged(worlds: Iterator[World]) -> None:
    for world in worlds:
        world.registry.on_second = partial(world.registry.revoked.add, KEY.public.key_id)
        world.refused(RefusalReason.REVOKED_KEY)


def test_a_second_signature_counts_when_the_first_key_is_revoked(worlds: Iterator[World]) -> None:
    for world in worlds:
        bundle = sign_files(SECOND, world.model.version, world.model.manifest.files)
        store_signature(world.objects, world.model.version, SECOND, bundle)
        world.registry.revoked.add(KEY.public.key_id)
        world.load()
        assert world.loads == [dict(world.model.contents)]


def test_a_flipped_byte_of_the_signature_loads_nothing_or_the_signed_model(
    worlds: Iterator[World],
) -> None:
    """Some bytes of a bundle mean nothing: an unknown field, or the padding of base64."""
    for world in worlds:
        flip_byte(signatures(world) / KEY.public.key_id, world.random)
        with suppress(ModelRefusedError):
            world.load()
        assert [load for load in world.loads if load != world.model.contents] == []


def test_the_replay_of_a_retired_version(worlds: Iterator[World]) -> None:
    for world in worlds:
        world.registry.retired.add(world.model.version)
        world.add(model_contents(world.random), KEY)
        world.refused(RefusalReason.RETIRED)


def test_a_version_that_is_retired_while_it_is_staged(worlds: Iterator[World]) -> None:
    for world in worlds:
        world.registry.on_second = partial(world.registry.retired.add, world.model.version)
        world.refused(RefusalReason.RETIRED)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("config.json", b'{"audio_model_id": "org/other"}'),
        ("config.json", b'{"speculators_config": {"verifier": {"name_or_path": "org/other"}}}'),
        ("tokenizer_config.json", b'{"vocab_file": "/etc/passwd"}'),
        ("preprocessor_config.json", b'{"auto_map": {"AutoProcessor": "org/x--p.P"}}'),
    ],
)
def test_a_signed_configuration_that_names_what_is_outside(
    path: str, content: bytes, worlds: Iterator[World]
) -> None:
    world = next(worlds)
    model = world.add(model_contents(world.random) | {path: content}, KEY)
    assert f"'{path}'" in world.refused(RefusalReason.CONFIG, model.version)
    world.load()  # the files that were staged are released, and another version loads


def test_a_signed_version_that_the_registry_does_not_name(worlds: Iterator[World]) -> None:
    for world in worlds:
        world.registry.known.clear()
        world.refused(RefusalReason.UNKNOWN)


def altered(manifest: Manifest, **fields: object) -> bytes:
    """Encode a manifest without the checks of `encode_manifest`."""
    values = {"schema": manifest.schema} | msgspec.to_builtins(manifest) | fields
    return msgspec.json.Encoder(order="sorted").encode(values)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "data.pkl", "x.pt", "configuration.py"])
def test_a_pickle_or_code_among_the_signed_files(worlds: Iterator[World], name: str) -> None:
    for world in worlds:
        contents = dict(world.model.contents) | {name: world.random.randbytes(50)}
        files = listed_files(contents)
        data = altered(Manifest(files))
        version = version_of(data)
        write_object(world.objects, f"models/manifests/{version}", data)
        store_signature(world.objects, version, KEY, sign_files(KEY, version, files))
        world.registry.known.add(version)
        assert name in world.refused(RefusalReason.MANIFEST, version)


@pytest.fixture(params=["options", "sampling", "base", "code", "byte"])
def manifest_change(request: pytest.FixtureRequest) -> Callable[[World], bytes]:
    changes: dict[str, dict[str, object]] = {
        "options": {"engine_options": {"max_model_len": 64}},
        "sampling": {"sampling": {"temperature": 0.1}},
        "base": {"base": "f" * 64},
        "code": {"allows_code": True},
    }

    def change(world: World) -> bytes:
        if request.param != "byte":
            return altered(world.model.manifest, **changes[request.param])
        data = bytearray(encode_manifest(world.model.manifest))
        data[world.random.randrange(len(data))] ^= world.random.randrange(1, 256)
        return bytes(data)

    return change


def test_an_altered_manifest_under_the_old_version(
    worlds: Iterator[World], manifest_change: Callable[[World], bytes]
) -> None:
    for world in worlds:
        key = f"models/manifests/{world.model.version}"
        write_object(world.objects, key, manifest_change(world))
        assert "altered" in world.refused(RefusalReason.MANIFEST)


def test_an_altered_manifest_with_the_old_signature(
    worlds: Iterator[World], manifest_change: Callable[[World], bytes]
) -> None:
    """Under its own version, with the signature of the version that it was made from."""
    for world in worlds:
        data = manifest_change(world)
        version = version_of(data)
        bundle = read_object(
            world.objects, f"models/signatures/{world.model.version}/{KEY.public.key_id}"
        )
        write_object(world.objects, f"models/manifests/{version}", data)
        store_signature(world.objects, version, KEY, bundle)
        world.registry.known.add(version)
        with pytest.raises(ModelRefusedError) as refusal:
            world.load(version)
        assert refusal.value.reason in {RefusalReason.MANIFEST, RefusalReason.SIGNATURE}
        assert world.loads == []


def test_the_signature_of_another_version(worlds: Iterator[World]) -> None:
    for world in worlds:
        other = world.add(model_contents(world.random), KEY)
        bundle = read_object(
            world.objects, f"models/signatures/{other.version}/{KEY.public.key_id}"
        )
        store_signature(world.objects, world.model.version, KEY, bundle)
        world.refused(RefusalReason.SIGNATURE)


def test_a_signature_of_the_files_alone(worlds: Iterator[World]) -> None:
    """As other tools sign: it does not cover the options of the version."""
    for world in worlds:
        bundle = sign_files(KEY, "model", world.model.manifest.files)
        store_signature(world.objects, world.model.version, KEY, bundle)
        assert "another version, or for files alone" in world.refused(RefusalReason.SIGNATURE)


def test_a_manifest_that_is_missing_or_far_too_long(worlds: Iterator[World]) -> None:
    for world in worlds:
        key = f"models/manifests/{world.model.version}"
        if world.random.random() < 0.9:
            world.objects.delete(key)
        else:
            write_object(world.objects, key, bytes(9 * 1024 * 1024))
        world.refused(RefusalReason.MANIFEST)


def test_a_model_that_does_not_fit_the_memory(worlds: Iterator[World]) -> None:
    world = next(worlds)
    cache = WeightCache(world.folder / "cache", bytes_max=10**6, clock=SystemClock(), wait=go_on)
    planned: list[bytes] = []

    def check(_manifest: Manifest, folder: Path) -> int | None:
        planned.append((folder / "config.json").read_bytes())
        raise ModelRefusedError(RefusalReason.MEMORY, "too large")

    loader = ModelLoader(world.objects, cache, world.registry, world.trusted, go_on, check)
    with pytest.raises(ModelRefusedError, match="too large") as refusal:
        loader.stage(world.model.version)
    assert refusal.value.reason == RefusalReason.MEMORY
    assert planned == [world.model.contents["config.json"]]
    assert world.is_released(world.model.version)


def test_an_adapter_of_another_base_and_a_model_as_adapter(worlds: Iterator[World]) -> None:
    world, base = next(worlds), "b" * 64
    adapter = store_model(world.objects, world.model.contents, KEY, base=base)
    world.registry.known.add(adapter.version)
    world.refused(RefusalReason.MANIFEST, adapter.version)
    cache = WeightCache(world.folder / "cache", bytes_max=10**6, clock=SystemClock(), wait=go_on)

    def loader(of: str) -> ModelLoader:
        return ModelLoader(
            world.objects, cache, world.registry, world.trusted, go_on, fits_always, of
        )

    for refused, of in ((adapter.version, "c" * 64), (world.model.version, base)):
        with pytest.raises(ModelRefusedError) as refusal:
            loader(of).stage(refused)
        assert refusal.value.reason == RefusalReason.MANIFEST
    with loader(base).stage(adapter.version) as staged:
        assert staged.manifest.base == base
