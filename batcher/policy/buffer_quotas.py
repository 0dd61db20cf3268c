"""Quotas of pools and tenants in the batcher's buffer, by dynamic thresholds. Pure.

A quota is a multiple of the free space, so it shrinks as soon as other tenants add chunks. Active
tenants need not be counted, and tenants without a chunk in the buffer always find free space.

Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
IEEE/ACM Transactions on Networking 6(2), 1998.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

POOL_RATIO: Final = 2
"""A pool may use this many times the free space."""

TENANT_RATIO: Final = 2
"""A tenant may have this many times what its pool may still add. One tenant alone in the buffer may
so have 4/7 of it: more than intake makes outstanding for one batcher, which is one half."""

FIRST_CHUNK_RATIO: Final = 8
"""A tenant that has nothing in the buffer may add to a pool that has up to this many times what is
free: it does not wait until a pool that was alone before has shrunk to its quota."""

TenantPool: TypeAlias = tuple[UUID, str]
_Key = TypeVar("_Key", str, TenantPool)


@dataclass(slots=True)
class BufferUsage:
    """How much of one resource, items or bytes, is used: in all, by pool, by tenant and pool."""

    capacity: int
    total: int = 0
    by_pool: Counter[str] = field(default_factory=Counter)
    by_tenant_pool: Counter[TenantPool] = field(default_factory=Counter)

    @property
    def is_full(self) -> bool:
        """Whether nothing is free; one chunk may exceed the capacity."""
        return self.total >= self.capacity

    def add(self, key: TenantPool, count: int) -> None:
        """Count more; less if `count` is negative."""
        self.total += count
        _add(self.by_pool, key[1], count)
        _add(self.by_tenant_pool, key, count)

    def admits(self, key: TenantPool) -> bool:
        """Whether the tenant may add one chunk, of whatever size."""
        free = self.capacity - self.total
        if free <= 0:
            return False
        of_pool, of_tenant = self.by_pool[key[1]], self.by_tenant_pool[key]
        if not of_tenant:
            return of_pool < FIRST_CHUNK_RATIO * free
        return of_tenant < TENANT_RATIO * (POOL_RATIO * free - of_pool)


def _add(counter: Counter[_Key], key: _Key, count: int) -> None:
    counter[key] += count
    if not counter[key]:
        del counter[key]
