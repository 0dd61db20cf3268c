"""What can go wrong on the log, and who is at fault."""

from core.errors import Disposition, MillraceError


class DeliveryError(MillraceError):
    """A record was not acknowledged in time; the role ends and what it read is delivered again."""

    code = "delivery_failed"


class DeliveryPendingError(DeliveryError):
    """Records were not acknowledged in time; they may be yet."""


class ProducerFatalError(DeliveryError):
    """The producer will never send again: the log lost records that it had acknowledged.

    Only a new process, with a new producer, mends that.
    """

    code = "producer_failed"


class KafkaUnavailableError(MillraceError):
    """The log does not answer."""

    code = "log_unavailable"


class KafkaAuthorizationError(KafkaUnavailableError):
    """The broker does not let this user read. Only its operator mends that."""

    code = "log_refused"


class StaleMemberError(MillraceError):
    """The group goes on without this member; what it holds belongs to others now."""

    code = "stale_member"
    disposition = Disposition.RETRY


class TopicDriftError(MillraceError):
    """A topic's configuration differs from the catalogue."""

    code = "topic_drift"
