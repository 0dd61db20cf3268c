"""Creates the rights of roles on a broker with an authoriser."""

from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from topics.clients.client_factory import new_client
from topics.errors import KafkaUnavailableError
from topics.records.access import Access, ResourceKind
from topics.settings import KafkaSettings

REQUEST_TIMEOUT_S = 30.0

_RESOURCES: Final[Mapping[ResourceKind, ResourceType]] = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.BROKER,  # the client's word for the cluster
}
_OPERATIONS: Final[Mapping[str, AclOperation]] = {
    "Alter": AclOperation.ALTER,
    "Create": AclOperation.CREATE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
}


def create_acls(settings: KafkaSettings, rights: Iterable[Access], *, principal: str) -> int:
    """Give each role its rights, from any host; return how many. They may exist already.

    `{role}` in `principal` is replaced. Raises KafkaUnavailableError.
    """
    bindings = [
        AclBinding(
            _RESOURCES[right.kind],
            right.name if right.kind == "cluster" else settings.topic_prefix + right.name,
            ResourcePatternType.LITERAL,
            principal.replace("{role}", right.role),
            "*",
            _OPERATIONS[right.operation],
            AclPermissionType.ALLOW,
        )
        for right in rights
    ]
    client = new_client(AdminClient, settings.client_options())
    try:
        for future in client.create_acls(bindings, request_timeout=REQUEST_TIMEOUT_S).values():
            future.result(REQUEST_TIMEOUT_S)
    except (KafkaException, TimeoutError) as failure:
        reason = failure.args[0].str() if isinstance(failure, KafkaException) else "no answer"
        raise KafkaUnavailableError(f"the rights were not created: {reason}") from None
    return len(bindings)
