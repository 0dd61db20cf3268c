"""Builders of online calls and their HTTP exchange, as an API process knows them."""

from typing import Any
from uuid import UUID

from starlette.types import Send

from api.online.exchange import Exchange, Recording
from api.online.memory_limits import BodyReservation, ResponseMemoryLimit, body_memory_limit
from core.ids import new_uuid
from topics.records.records import CallRef, JobRef


def call_job(
    *,
    job_id: UUID | None = None,
    tenant_id: UUID | None = None,
    endpoint: str = "/v1/completions",
    version: str = "1",
    stream: bool = False,
    durable: bool = False,
    key_name: str = "",
) -> JobRef:
    return JobRef(
        job_id=job_id or new_uuid(),
        day=0,
        tenant_id=tenant_id or new_uuid(),
        model="m",
        model_version=version,
        pool="p",
        endpoint=endpoint,
        input_key="",
        deadline_s=0.0,
        call=CallRef("c", 0, stream=stream, durable=durable),
        key_name=key_name,
    )


def new_exchange(
    send: Send,
    *,
    tenant_id: UUID | None = None,
    response_limit: ResponseMemoryLimit | None = None,
    recording: Recording | None = None,
    connection: object = None,
) -> Exchange:
    """Return the exchange of an authenticated call whose body was read."""
    reservation = BodyReservation(body_memory_limit(1, body_bytes_max=1))
    reservation.assign_tenant(tenant_id or new_uuid())
    unused: Any = None
    client: Any = connection
    return Exchange(
        request_id=new_uuid(),
        endpoint="",
        headers={},
        receive=unused,
        send=send,
        connection=client,
        body_reservation=reservation,
        arrived_s=0.0,
        count_for_tenant=unused,
        response_limit=response_limit or ResponseMemoryLimit(1 << 30),
        recording=recording,
    )
