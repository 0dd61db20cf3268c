"""An object store in memory that can be unavailable."""

from collections.abc import Iterator

from storage.objects.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
)
from storage.objects.object_store import ObjectBlocks, ObjectInfo, Upload


class MemoryUpload(Upload):
    """An object being written."""

    def __init__(self, store: "MemoryStore", key: str) -> None:
        super().__init__(key)
        self._objects, self._data = store.objects, b""

    def _store(self, data: bytes) -> None:
        self._data += data

    def _publish(self, *, if_absent: bool) -> None:
        if if_absent and self.key in self._objects:
            raise ObjectExistsError(key=self.key)
        self._objects[self.key] = self._data

    def _discard(self) -> None:
        pass


class MemoryStore:
    """Objects by key."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.is_away = False
        self.read_count = 0

    def begin_upload(self, key: str) -> MemoryUpload:
        self._require_available()
        return MemoryUpload(self, key)

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        self._require_available()
        self.read_count += 1
        if key not in self.objects:
            raise ObjectNotFoundError(key=key)
        data = [self.objects[key][offset:]]
        return ObjectBlocks(lambda n: _cut(data, n), lambda: None, length)

    def size(self, key: str) -> int:
        return len(self.objects[key])

    def delete(self, key: str) -> None:
        self._require_available()
        self.objects.pop(key, None)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._require_available()
        found = [key for key in self.objects if key.startswith(prefix)]
        yield from (ObjectInfo(key, len(self.objects[key]), 0.0) for key in found)

    def sweep_temporary(self, older_than_s: float) -> int:
        return 0

    def _require_available(self) -> None:
        if self.is_away:
            raise ObjectStoreUnavailableError


def _cut(data: list[bytes], count: int) -> bytes:
    block, data[0] = data[0][:count], data[0][count:]
    return block
