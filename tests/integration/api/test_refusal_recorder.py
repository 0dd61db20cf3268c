"""Goal: an API process turns the report of a replica that refused its model into an audit entry."""

import sqlalchemy as sa

from tenancy.audit_log import Action
from tenancy.installation_log import INSTALLATION
from tenancy.tables import audit_log
from tests.integration.api.online_site import OpenOnline
from tests.support.capacity_records import capacity_record
from topics.clients.producer import RecordProducer
from topics.records.catalogue import CAPACITY
from topics.records.records import LoadedModel
from topics.settings import KafkaSettings


def test_a_replica_that_refuses_its_model_is_in_the_audit_log(
    kafka: KafkaSettings, open_online: OpenOnline
) -> None:
    online = open_online()
    producer = RecordProducer(kafka, client_id="played-refusing", linger_ms=0)
    models = [LoadedModel("a" * 64, "refused", reason="signature")]
    query = sa.select(audit_log).where(
        audit_log.c.tenant_id == INSTALLATION, audit_log.c.action == Action.MODEL_REFUSED.value
    )
    replicas = 0

    def is_recorded() -> bool:
        """Report by another replica, as one that was started again."""
        nonlocal replicas
        replicas += 1
        report = capacity_record(f"r{replicas}", pool="p", available=False, models=models)
        producer.send(
            CAPACITY.name, report.value, partition=0, key=report.key, headers=report.headers
        )
        with online.site.engine.connect() as connection:
            return bool(connection.execute(query).all())

    online.pool.wait_for(is_recorded)
    producer.close()
    with online.site.engine.connect() as connection:
        (entry,) = connection.execute(query).all()
    assert (entry.actor, entry.subject) == ("system", "p")
    assert (entry.details["version"], entry.details["reason"]) == ("a" * 64, "signature")
