"""Counts the bytes that validation reads."""

import threading


class ByteCount:
    """Counts bytes. Thread-safe."""

    def __init__(self) -> None:
        """Start with none."""
        self._lock = threading.Lock()
        self._count = 0

    def add(self, count: int) -> None:
        """Count bytes."""
        with self._lock:
            self._count += count

    def take_count(self) -> int:
        """Return the bytes since the last call."""
        with self._lock:
            count, self._count = self._count, 0
        return count
