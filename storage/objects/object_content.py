"""Objects that fit into memory, in one piece. Every function raises what a store raises."""

from storage.objects.object_store import ObjectReader, ObjectStore


def read_object(
    objects: ObjectReader, key: str, *, offset: int = 0, length: int | None = None
) -> bytes:
    """Return an object whose size is bounded, or a part of it."""
    with objects.read(key, offset=offset, length=length) as blocks:
        return b"".join(blocks)


def write_object(objects: ObjectStore, key: str, content: bytes) -> None:
    """Store an object, in place of one of the same key."""
    with objects.begin_upload(key) as upload:
        upload.write(content)
        upload.complete()
