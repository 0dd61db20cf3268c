"""Charges the tokens of calls to their tenants' limits: an estimate first, then the usage.

    reserve prompt + named or expected output ─► end of the call or report of its replica ─► usage

A call whose client left has no end here. Its replica reports what it executed, a moment later.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from uuid import UUID

from api.online.admit.admission import RateLimits, TenantBuckets
from core.bodies.output_estimator import OutputEstimator
from core.bodies.token_estimates import RequestedTokens, TokenEstimate
from core.limits import CLIENT_LEFT_STATUS
from topics.records.records import JobRef, Reply, ReplyEnd

_NAMES_MAX: Final = 10_000  # of models, as tenants spell them; the oldest is forgotten
_REPORTS_MAX: Final = 20_000  # calls whose report is awaited; the oldest keeps its charge


@dataclass(slots=True, eq=False)
class Charge:
    """What one call is charged: its reservation until it is settled."""

    buckets: TenantBuckets
    charged: int  # tokens that were taken from `buckets`
    estimate: TokenEstimate
    requested: RequestedTokens
    source: tuple[UUID, str, str]  # tenant, what serves it or its model's name, and endpoint
    is_settled: bool = False

    def settle(self, used: int, *, now_s: float) -> None:
        """Charge `used` tokens instead of the reservation; only the first time counts."""
        if not self.is_settled:
            self.is_settled = True
            self.correct(used, now_s=now_s)

    def correct(self, used: int, *, now_s: float) -> None:
        """Charge `used` tokens instead of what was charged so far."""
        self.buckets.settle(self.charged, used, now_s=now_s)
        self.charged = used


class TokenCharges:
    """The charges of the calls of this process, and what their results teach about later calls."""

    def __init__(self, limits: RateLimits) -> None:
        self._limits = limits
        self._outputs = OutputEstimator()
        self._unreported: OrderedDict[UUID, tuple[Charge, int]] = OrderedDict()  # with reservation
        self._served_by: OrderedDict[tuple[UUID, str], str] = OrderedDict()  # by tenant and name

    def reserve(
        self, source: tuple[UUID, str, str], requested: RequestedTokens, *, now_s: float
    ) -> Charge:
        """Charge the prompt and the output that a call named or lets expect. Raises ApiError (429).

        `source` is its tenant, the name of its model and its endpoint.
        """
        tenant_id, name, endpoint = source
        source = tenant_id, self._served_by.get((tenant_id, name), name), endpoint
        buckets = self._limits.of_tenant(tenant_id, now_s=now_s)
        expected_output = self._outputs.expected(*source)
        estimate = requested.estimate(expected_output)
        charged = buckets.admit(requested.reservation(estimate), now_s=now_s)
        return Charge(buckets, charged, estimate, requested, source)

    def note_served_by(self, charge: Charge, job: JobRef) -> None:
        """Note what the model's name of a call means: results teach about that, not about names.

        A model has many names (`name@version` with any number of digits, aliases).
        """
        charge.source = _source_of(charge, job)
        self._served_by[job.tenant_id, job.model] = charge.source[1]
        self._served_by.move_to_end((job.tenant_id, job.model))
        if len(self._served_by) > _NAMES_MAX:
            self._served_by.popitem(last=False)

    def lower(
        self, charge: Charge, requested: RequestedTokens, *, job: JobRef, now_s: float
    ) -> None:
        """Charge a call that was degraded for what it requests since then, and never more."""
        charge.source, charge.requested = _source_of(charge, job), requested
        charge.estimate = requested.estimate(self._outputs.expected(*charge.source))
        charge.correct(min(charge.charged, requested.reservation(charge.estimate)), now_s=now_s)

    def settle(self, charge: Charge, end: ReplyEnd, *, now_s: float) -> None:
        """Charge the usage that the end of a call states, and learn from it.

        A call that was aborted on an engine that does not count keeps its reservation.
        """
        if charge.is_settled:
            return
        charge.settle(charge.charged if _is_uncounted(end) else _used(end), now_s=now_s)
        self._learn(charge, end)

    def await_report(
        self,
        request_id: UUID,
        charge: Charge,
        *,
        has_started: bool,
        piece_count: int = 0,
        now_s: float,
    ) -> None:
        """Charge a call without an end for now; the report of its replica corrects that.

        A call that is not known to have started costs nothing. One that has keeps its reservation,
        or is charged the prompt and the pieces that arrived if they are more. A lost report changes
        nothing.
        """
        if charge.is_settled:
            return
        reserved = charge.charged
        delivered = charge.estimate.prompt + piece_count if piece_count else 0
        charge.settle(max(reserved, delivered) if has_started else 0, now_s=now_s)
        self._unreported[request_id] = charge, reserved
        if len(self._unreported) > _REPORTS_MAX:
            self._unreported.popitem(last=False)

    def receive_replies(self, replies: Iterable[Reply], *, now_s: float) -> None:
        """Apply what replicas report about calls that were left."""
        for reply in replies if self._unreported else ():
            found = self._unreported.get(reply.request_id)
            if found is None:
                continue
            charge, reserved = found
            if reply.end is None:
                charge.correct(max(charge.charged, reserved), now_s=now_s)  # it has started
                continue
            del self._unreported[reply.request_id]
            used = _used(reply.end)
            if _is_uncounted(reply.end):
                used = max(charge.charged, reserved)
            elif reply.end.output_tokens and not reply.end.input_tokens:
                used += charge.estimate.prompt  # its engine counts no prompts
            charge.correct(used, now_s=now_s)
            self._learn(charge, reply.end)

    def _learn(self, charge: Charge, end: ReplyEnd) -> None:
        if end.status_code < HTTPStatus.BAD_REQUEST and _used(end):
            self._outputs.add_result(*charge.source, charge.requested, end.output_tokens)


def _source_of(charge: Charge, job: JobRef) -> tuple[UUID, str, str]:
    tenant_id, _, endpoint = charge.source
    return tenant_id, f"{job.pool}@{job.model_version}", endpoint


def _used(end: ReplyEnd) -> int:
    return end.input_tokens + end.output_tokens


def _is_uncounted(end: ReplyEnd) -> bool:
    """Whether a call was aborted in its execution, on an engine that does not count its tokens."""
    is_aborted = end.status_code in (CLIENT_LEFT_STATUS, HTTPStatus.GATEWAY_TIMEOUT)
    return is_aborted and end.execution_s > 0 and not _used(end)
