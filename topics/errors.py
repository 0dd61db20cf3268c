"""Errors of Kafka clients."""

from core.errors import Disposition, MillraceError


class DeliveryError(MillraceError):
    """A record was not acknowledged in time. The role ends; its input is delivered again."""

    code = "delivery_failed"


class DeliveryPendingError(DeliveryError):
    """Records were not acknowledged in time. They may still be."""


class ProducerFatalError(DeliveryError):
    """The producer cannot send any more: Kafka lost acknowledged records. Restart the process."""

    code = "producer_failed"


class KafkaUnavailableError(MillraceError):
    """Kafka does not answer."""

    code = "log_unavailable"


class KafkaAuthorizationError(KafkaUnavailableError):
    """Kafka denies this user read access. Change its ACLs."""

    code = "log_refused"


class StaleMemberError(MillraceError):
    """The consumer group has removed this member. Its partitions belong to other members."""

    code = "stale_member"
    disposition = Disposition.RETRY


class TopicDriftError(MillraceError):
    """A topic's configuration differs from the catalogue."""

    code = "topic_drift"
