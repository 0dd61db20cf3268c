"""Goal: the local store and S3 both keep every guarantee of `ObjectStore`."""

import hashlib
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from storage.objects.errors import (
    ObjectExistsError,
    ObjectKeyError,
    ObjectNotFoundError,
    UploadClosedError,
)
from storage.objects.object_store import (
    BLOCK_BYTES,
    KEY_CHARS_MAX,
    ObjectStore,
    StoredObject,
    read_object,
)
from tests.integration.storage.conftest import PAGE_KEYS

MIB = 1024 * 1024
CENTURY_S = 3.2e9  # the S3 server of the tests dates every upload to 2010
PATTERN = bytes(range(256)) * 4096  # 1 MiB


def put(store: ObjectStore, key: str, data: bytes, *, if_absent: bool = False) -> StoredObject:
    """Write one object in one go."""
    with store.begin_upload(key) as upload:
        upload.write(data)
        return upload.complete(if_absent=if_absent)


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    """List keys in order."""
    return sorted(info.key for info in store.list(prefix))


@pytest.mark.parametrize("size", [0, 1, 5 * MIB, 5 * MIB + 1, 12 * MIB])
def test_an_object_is_read_as_written(store: ObjectStore, size: int) -> None:
    data = (PATTERN * 12)[:size]
    stored = put(store, "jobs/a/input.jsonl", data)
    assert stored == StoredObject("jobs/a/input.jsonl", size, hashlib.sha256(data).hexdigest())
    assert store.size("jobs/a/input.jsonl") == size
    assert read_object(store, "jobs/a/input.jsonl") == data


def test_writes_and_reads_cross_parts_and_blocks(store: ObjectStore) -> None:
    pieces = [b"", b"a", PATTERN * 6, b"b" * 17, b"", PATTERN * 5, b"c"]
    data = b"".join(pieces)
    with store.begin_upload("pieces") as upload:
        for piece in pieces:
            upload.write(piece)
        stored = upload.complete()
    assert stored.sha256_hex == hashlib.sha256(data).hexdigest()
    assert read_object(store, "pieces") == data
    blocks = list(store.read("pieces", offset=4 * MIB + 7, length=3 * MIB))
    assert b"".join(blocks) == data[4 * MIB + 7 : 7 * MIB + 7]
    assert all(0 < len(block) <= BLOCK_BYTES for block in blocks)


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, None, b"0123456789"),
        (3, None, b"3456789"),
        (3, 4, b"3456"),
        (0, 0, b""),
        (9, 1, b"9"),
        (8, 100, b"89"),
        (10, None, b""),
        (10, 5, b""),
        (1000, None, b""),
        (1000, 0, b""),
    ],
)
def test_a_range_returns_its_bytes(
    store: ObjectStore, offset: int, length: int | None, expected: bytes
) -> None:
    put(store, "digits", b"0123456789")
    assert read_object(store, "digits", offset=offset, length=length) == expected


@pytest.mark.parametrize("key", ["nothing", "no/such/folder", "folder"])
def test_a_missing_object_or_a_folder_raises_at_once(store: ObjectStore, key: str) -> None:
    put(store, "folder/object", b"x")
    for action in (store.read, partial(store.read, offset=5, length=0), store.size):
        with pytest.raises(ObjectNotFoundError):
            action(key)
    store.delete(key)
    assert keys(store) == ["folder/object"]


def test_a_second_upload_replaces_the_first_but_not_for_its_readers(store: ObjectStore) -> None:
    put(store, "same", PATTERN * 6)
    blocks = store.read("same")
    put(store, "same", b"new")
    assert b"".join(blocks) == PATTERN * 6
    assert read_object(store, "same") == b"new"
    assert store.size("same") == 3


@pytest.mark.parametrize("size", [3, 6 * MIB])
def test_if_absent_refuses_a_second_object(store: ObjectStore, size: int) -> None:
    put(store, "once", b"first", if_absent=True)
    with pytest.raises(ObjectExistsError):
        put(store, "once", bytes(size), if_absent=True)
    assert read_object(store, "once") == b"first"
    assert store.sweep_temporary(0) == 0


@pytest.mark.parametrize(("rival_count", "size"), [(16, 1000), (16, 0), (4, 6 * MIB)])
def test_exactly_one_of_concurrent_creations_succeeds(
    store: ObjectStore, rival_count: int, size: int
) -> None:
    start = threading.Barrier(rival_count, timeout=20)

    def create(rival: int) -> bytes | None:
        data = bytes([rival]) * size
        with store.begin_upload("folder/contested") as upload:
            upload.write(data)
            start.wait()
            try:
                upload.complete(if_absent=True)
            except ObjectExistsError:
                return None
            return data

    with ThreadPoolExecutor(rival_count) as pool:
        winners = [data for data in pool.map(create, range(rival_count)) if data is not None]
    assert len(winners) == 1
    assert read_object(store, "folder/contested") == winners[0]
    assert store.sweep_temporary(0) == 0


@pytest.mark.parametrize("size", [0, 10, 12 * MIB])
def test_an_aborted_upload_leaves_no_object(store: ObjectStore, size: int) -> None:
    with store.begin_upload("folder/abandoned") as upload:
        upload.write(bytes(size))
    assert keys(store) == []
    assert store.sweep_temporary(0) == 0
    with pytest.raises(ObjectNotFoundError):
        store.size("folder/abandoned")


def test_an_unfinished_upload_is_invisible(store: ObjectStore) -> None:
    put(store, "same", b"old")
    with store.begin_upload("same") as upload:
        upload.write(PATTERN * 6)
        assert read_object(store, "same") == b"old"
        assert keys(store) == ["same"]
        upload.complete()
    assert store.size("same") == 6 * MIB


def test_a_closed_upload_refuses_writes(store: ObjectStore) -> None:
    upload = store.begin_upload("closed")
    upload.complete()
    upload.abort()
    assert store.size("closed") == 0
    with pytest.raises(UploadClosedError):
        upload.write(b"x")
    with pytest.raises(UploadClosedError):
        upload.complete()


def test_a_sweep_removes_unfinished_uploads_but_no_object(store: ObjectStore) -> None:
    put(store, "kept", b"x")
    crashed = store.begin_upload("crashed")
    crashed.write(PATTERN * 11)
    assert store.sweep_temporary(CENTURY_S) == 0
    assert store.sweep_temporary(-1) == 1
    assert store.sweep_temporary(-1) == 0
    assert keys(store) == ["kept"]
    crashed.abort()


def test_delete_is_idempotent(store: ObjectStore) -> None:
    put(store, "a/b/c", b"x")
    store.delete("a/b/c")
    store.delete("a/b/c")
    store.delete("never/was")
    assert keys(store) == []
    put(store, "a/b/c", b"y")
    assert read_object(store, "a/b/c") == b"y"


def test_a_list_returns_objects_with_the_prefix(store: ObjectStore) -> None:
    names = ["jobs/a/1", "jobs/a/2", "jobs/a-b", "jobs/b/1", "other"]
    for name in names:
        put(store, name, name.encode())
    assert keys(store) == sorted(names)
    assert keys(store, "jobs/a") == ["jobs/a-b", "jobs/a/1", "jobs/a/2"]
    assert keys(store, "jobs/a/") == ["jobs/a/1", "jobs/a/2"]
    assert keys(store, "jobs/a/1") == ["jobs/a/1"]
    assert keys(store, "jobs/c") == keys(store, "nothing/") == []
    info = next(iter(store.list("other")))
    assert info.size_bytes == len("other")
    assert info.modified_s > 1_600_000_000


def test_a_list_goes_past_one_page(store: ObjectStore) -> None:
    count = 2 * PAGE_KEYS + 5
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: put(store, f"many/{n:04}", b""), range(count)))
    assert keys(store, "many/") == [f"many/{n:04}" for n in range(count)]


BAD_KEYS = (
    *("", "/a", "a/", "a//b", "..", "a/../b", "../../etc/passwd", "./a", ".temporary/a"),
    *("A", "a b", "a\n", "a\x00", "ä", "a\\b", "x" * 201, "x/" * (KEY_CHARS_MAX // 2) + "x"),
)


def test_a_bad_key_or_prefix_is_refused_everywhere(store: ObjectStore) -> None:
    for key in BAD_KEYS:
        for action in (store.begin_upload, store.read, store.size, store.delete):
            with pytest.raises(ObjectKeyError):
                action(key)
    for prefix in ("/", "../", "a/..", ".temporary", "A", "a*"):
        with pytest.raises(ObjectKeyError):
            list(store.list(prefix))


def test_a_reader_may_stop_early(store: ObjectStore) -> None:
    put(store, "large", PATTERN * 12)
    for _ in range(100):  # more than the connections that one process keeps
        with store.read("large") as blocks:
            assert next(blocks) == PATTERN
        assert next(blocks, None) is None
    assert store.size("large") == 12 * MIB


def test_memory_does_not_grow_with_the_object(store: ObjectStore) -> None:
    """64 MiB in writes of 1 MiB and one of 16 MiB, then read, in less than 24 MiB beside them."""
    large = PATTERN * 16
    tracemalloc.start()
    try:
        with store.begin_upload("large") as upload:
            for _ in range(48):
                upload.write(PATTERN)
            upload.write(large)
            stored = upload.complete()
        total = sum(len(block) for block in store.read("large"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert stored.size_bytes == total == 64 * MIB
    assert peak < 24 * MIB
