"""Removes the member of a process that has ended from a consumer group.

Sends the request that the member itself would have sent: `LeaveGroup` for the classic protocol,
`ConsumerGroupHeartbeat` with epoch -1 for the `consumer` protocol (KIP-848). Kafka clients offer
neither for another's membership; aiokafka can send any request.
"""

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import Any, Final

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.group import LeaveGroupRequest
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from topics.settings import GroupProtocol, KafkaSettings

_LOG = logging.getLogger(__name__)

_LEAVING_EPOCH: Final = -1
_UNCHANGED: Final = -1
_HAS_LEFT: Final = frozenset({0, 25, 69})
"""No error, `UNKNOWN_MEMBER_ID`, `GROUP_ID_NOT_FOUND`: the member is not in the group."""


class _HeartbeatResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 68
    API_VERSION = 0
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16))  # more follows, not needed


class _Heartbeat(RequestStruct):  # type: ignore[misc]
    """KIP-848, ConsumerGroupHeartbeat version 0."""

    API_KEY = 68
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _HeartbeatResponse
    SCHEMA = Schema(
        ("group_id", CompactString("utf-8")),
        ("member_id", CompactString("utf-8")),
        ("member_epoch", Int32),
        ("instance_id", CompactString("utf-8")),
        ("rack_id", CompactString("utf-8")),
        ("rebalance_timeout_ms", Int32),
        ("subscribed_topic_names", CompactArray(CompactString("utf-8"))),
        ("server_assignor", CompactString("utf-8")),
        ("topic_partitions", CompactArray(Int32)),  # always null here
        ("tags", TaggedFields),
    )


class _LastHeartbeat(Request[_Heartbeat]):  # type: ignore[misc]
    API_KEY = 68

    def __init__(self, group: str, member_id: str) -> None:
        self._group, self._member_id = group, member_id

    def build(self, request_struct_class: type[_Heartbeat]) -> _Heartbeat:
        fields = (self._group, self._member_id, _LEAVING_EPOCH, None, None, _UNCHANGED)
        return request_struct_class(*fields, None, None, None, {})


def remove_member(
    settings: KafkaSettings,
    group: str,
    member_id: str,
    protocol: GroupProtocol,
    *,
    timeout_s: float,
) -> None:
    """Remove a member of `group`, given with its prefix, whose process has ended for certain.

    The partitions of a live member would go to others while it works on them. A removal that fails
    within `timeout_s` is logged; the broker then removes the member after its session timeout.
    """
    kind = _LastHeartbeat if protocol == "consumer" else LeaveGroupRequest
    answered: Future[int] = Future()

    def run() -> None:
        try:
            sending = _send(settings, group, kind(group, member_id), timeout_s)
            answered.set_result(asyncio.run(sending))
        except Exception as error:  # noqa: BLE001  raised where it is waited for
            answered.set_exception(error)

    # A thread, as this one may have a loop; a daemon, as nothing bounds the lookup of a name.
    threading.Thread(target=run, name="leaving", daemon=True).start()
    try:
        error_code = answered.result(timeout_s)
    except Exception as error:  # noqa: BLE001  no failure may prevent the start of the process
        _LOG.warning("member_not_left", extra={"group": group, "reason": type(error).__name__})
        return
    if error_code not in _HAS_LEFT:
        reason = f"error {error_code}"
        _LOG.warning("member_not_left", extra={"group": group, "reason": reason})


async def _send(settings: KafkaSettings, group: str, request: Any, timeout_s: float) -> int:
    async with asyncio.timeout(timeout_s):
        client = _client(settings, timeout_s)
        try:
            await client.bootstrap()
            coordinator = await client.coordinator_lookup(CoordinationType.GROUP, group)
            answer = await client.send(coordinator, request, group=ConnectionGroup.COORDINATION)
        finally:
            await client.close()
    return int(answer.error_code)


def _client(settings: KafkaSettings, timeout_s: float) -> Any:
    secret = settings.sasl_password
    return AIOKafkaClient(
        bootstrap_servers=settings.bootstrap_servers.split(","),
        client_id="millrace-leaving",
        request_timeout_ms=int(timeout_s * 1000),
        security_protocol=settings.security_protocol,
        ssl_context=settings.ssl_context(),
        sasl_mechanism=settings.sasl_mechanism or "PLAIN",
        sasl_plain_username=settings.sasl_username,
        sasl_plain_password=secret.get_secret_value() if secret else None,
    )
