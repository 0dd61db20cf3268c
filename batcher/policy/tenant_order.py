"""The order of tenants: reserved shares and trickles first, then classes, then counters. Pure.

    1. a tenant that had less than its reserved share, or a lower class that had less than its
       trickle: the one that is most behind
    2. the highest class with work
    3. in a class, the tenant with the lowest virtual counter; of equals, one that has just come

Every service is charged to the counter of its tenant, whatever brought it, so a reserved share is a
least share and comes on top of nothing. No capacity is kept free: without work of those who are
due, the next in order is served.
"""

from collections.abc import Collection, Hashable
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from batcher.policy.fairness import Place, VirtualCounters
from batcher.policy.reserved_service import ReservedService
from core.tenant_claims import PLAIN_CLAIM, RESERVED_TOTAL_MAX, TRICKLE_SHARE, TenantClaim

K = TypeVar("K", bound=Hashable)


class _Trickle(NamedTuple):
    """The key of a lower class among the clients that are due a share."""

    tenant_class: int


OrderKey: TypeAlias = tuple[int, Place]
"""The place of a tenant in the order; the lowest is first."""

_BEHIND: Final = -1  # before every class


class TenantOrder(Generic[K]):
    """Tenants with work, and the counters of those that left lately.

    While all tenants are of one class and none has a reserved share, it costs what the counters do.
    """

    def __init__(self) -> None:
        """Start without tenants."""
        self._claims: dict[K, TenantClaim] = {}  # of the active tenants
        self._counters: dict[int, VirtualCounters[K]] = {}  # by class
        self._due: ReservedService[K | _Trickle] = ReservedService()
        self._reserved_total = 0.0  # of the active tenants
        self._single: VirtualCounters[K] | None = None  # of all tenants, if nothing else counts

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, tenant: K) -> bool:
        return tenant in self._claims

    def counter(self, tenant: K) -> float:
        """Return the counter of an active tenant."""
        return self._counters[self._claims[tenant].tenant_class].counter(tenant)

    def lead(self, tenant: K) -> float:
        """Return a tenant's counter above the lowest active one of its class; 0 if unknown."""
        claim = self._claims.get(tenant)
        if claim is not None:
            return self._counters[claim.tenant_class].lead(tenant)
        return max((one.lead(tenant) for one in self._counters.values()), default=0.0)

    @property
    def expects_clients(self) -> bool:
        """Whether restored tenants with work have not come yet."""
        return any(one.expects_clients for one in self._counters.values())

    def restore(self, tenant: K, lead: float, tenant_class: int, *, has_work: bool) -> None:
        """Set the lead of a tenant that an earlier process served; see `VirtualCounters`."""
        if tenant not in self._claims:
            self._of_class(tenant_class).restore(tenant, lead, has_work=has_work)

    def end_restore(self) -> None:
        """Treat the restored tenants that have not come as tenants without work."""
        for one in self._counters.values():
            one.end_restore()

    def activate(self, tenant: K, claim: TenantClaim = PLAIN_CLAIM) -> None:
        """Add a tenant with work, or apply its new claim."""
        known = self._claims.get(tenant)
        if known is not None:
            if known != claim:
                self._change_claim(tenant, known, claim)
            return
        self._claims[tenant] = claim
        counters = self._of_class(claim.tenant_class)
        counters.activate(tenant)
        if claim.reserved:
            self._reserved_total += claim.reserved
            self._due.activate(tenant, claim.reserved)
        if counters is not self._single or claim.reserved:
            self._update_classes()

    def deactivate(self, tenant: K) -> None:
        """Remove a tenant without work."""
        claim = self._claims.pop(tenant, None)
        if claim is None:
            return
        self._counters[claim.tenant_class].deactivate(tenant)
        if self._single is None:
            self._reserved_total -= claim.reserved
            self._due.deactivate(tenant)
            self._update_classes()

    def charge(self, tenant: K, service: float, tokens: float) -> None:
        """Charge an active tenant for tokens; `service`: see `service_cost`."""
        self._counters[self._claims[tenant].tenant_class].charge(tenant, service)
        if self._due:
            self._count(tenant, self._claims[tenant].tenant_class, tokens)

    def charge_if_known(
        self, tenant: K, service: float, tokens: float, tenant_class: int | None = None
    ) -> bool:
        """Charge a tenant, unless it never came or was forgotten; return whether it is known.

        `tenant_class` is that of a tenant that need not be active.
        """
        claim = self._claims.get(tenant)
        if self._due:
            self._count(tenant, tenant_class if claim is None else claim.tenant_class, tokens)
        if claim is not None:
            return self._counters[claim.tenant_class].charge_if_known(tenant, service)
        return any(one.charge_if_known(tenant, service) for one in self._counters.values())

    def first(self, tenants: Collection[K]) -> K:
        """Return which of these active tenants is next."""
        if self._single is None:
            return self._first_in_order(tenants)[1]
        if len(tenants) == len(self._claims):  # all of them
            return self._single.least_served()
        return self._single.least_served_of(tenants)

    def first_key(self, tenants: Collection[K]) -> OrderKey:
        """Return the place of the first of these active tenants."""
        if self._single is None:
            return self._first_in_order(tenants)[0]
        return 0, self._single.place(self.first(tenants))

    def _change_claim(self, tenant: K, known: TenantClaim, claim: TenantClaim) -> None:
        """Apply the new claim of an active tenant, which keeps what it is ahead or behind.

        Records of several processes may hold an older and a newer claim by turns for a while.
        """
        self._claims[tenant] = claim
        if known.tenant_class != claim.tenant_class:
            lead = self._counters[known.tenant_class].leave(tenant)
            self._of_class(claim.tenant_class).activate(tenant, lead)
        self._reserved_total += claim.reserved - known.reserved
        if claim.reserved:
            self._due.activate(tenant, claim.reserved)
        else:
            self._due.deactivate(tenant)
        if known.tenant_class != claim.tenant_class or bool(known.reserved) != bool(claim.reserved):
            self._update_classes()

    def _of_class(self, tenant_class: int) -> VirtualCounters[K]:
        counters = self._counters.get(tenant_class)
        if counters is None:
            counters = self._counters[tenant_class] = VirtualCounters()
        return counters

    def _first_in_order(self, tenants: Collection[K]) -> tuple[OrderKey, K]:
        if len(tenants) == len(self._claims):  # all of them
            return self._first_of_all()
        by_class: dict[int, list[K]] = {}
        for tenant in tenants:
            by_class.setdefault(self._claims[tenant].tenant_class, []).append(tenant)
        behind = [
            (self._due.tag(key), key)
            for key in self._due
            if self._due.is_behind(key)
            and (key.tenant_class in by_class if isinstance(key, _Trickle) else key in tenants)
        ]
        if behind:
            tag, key = min(behind, key=lambda one: one[0])
            place = (_BEHIND, (tag, False))
            if not isinstance(key, _Trickle):
                return place, key
            of_class = by_class[key.tenant_class]
            return place, self._counters[key.tenant_class].least_served_of(of_class)
        highest = min(by_class)
        tenant = self._counters[highest].least_served_of(by_class[highest])
        return (highest, self._counters[highest].place(tenant)), tenant

    def _first_of_all(self) -> tuple[OrderKey, K]:
        key = self._due.most_behind()
        if key is None:
            highest = min(number for number, one in self._counters.items() if len(one))
            tenant = self._counters[highest].least_served()
            return (highest, self._counters[highest].place(tenant)), tenant
        place = (_BEHIND, (self._due.tag(key), False))
        if isinstance(key, _Trickle):
            return place, self._counters[key.tenant_class].least_served()
        return place, key

    def _count(self, tenant: K, tenant_class: int | None, tokens: float) -> None:
        """Count tokens. Those of a reserved share are no part of the trickle of the class.

        Reserved shares of more than their largest sum are reduced to it in proportion, as in
        `effective_weights`: records may hold shares of different times.
        """
        due = self._due
        if not due.is_behind(tenant) and tenant_class is not None:
            trickle = _Trickle(tenant_class)
            if trickle in due:
                due.charge(trickle, tokens)
        if tenant in due:
            excess = max(1.0, self._reserved_total / RESERVED_TOTAL_MAX)
            due.charge(tenant, tokens * excess)
        due.count(tokens)

    def _update_classes(self) -> None:
        """Let the lower classes with work have their trickles."""
        classes = sorted(number for number, one in self._counters.items() if len(one))
        for number in self._counters:
            if number in classes[1:]:
                self._due.activate(_Trickle(number), TRICKLE_SHARE)
            else:
                self._due.deactivate(_Trickle(number))
        is_plain = len(classes) == 1 and not self._due
        self._single = self._counters[classes[0]] if is_plain else None
