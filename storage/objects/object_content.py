"""Reads and writes objects that fit into memory. Every function raises the store's errors."""

from storage.objects.object_store import ObjectReader, ObjectStore


def read_object(
    objects: ObjectReader, key: str, *, offset: int = 0, length: int | None = None
) -> bytes:
    """Return the content of an object, or a range of it."""
    with objects.read(key, offset=offset, length=length) as blocks:
        return b"".join(blocks)


def write_object(objects: ObjectStore, key: str, content: bytes) -> None:
    """Store an object; it replaces one of the same key."""
    with objects.begin_upload(key) as upload:
        upload.write(content)
        upload.complete()
