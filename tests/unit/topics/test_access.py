"""Goal: the rights of roles on the log follow the catalogue, and hold nothing more."""

from cli.stack.processes.role_children import MODULES
from topics.records.access import CLUSTER, GROUPS, NO_GROUP, Access, role_access
from topics.records.catalogue import SHARED_TOPICS, pool_topics

TOPICS = [*SHARED_TOPICS, *pool_topics("p")]
RIGHTS = role_access(["p"])


def test_a_role_writes_and_reads_the_topics_of_the_catalogue() -> None:
    for operation, field in (("Write", "written_by"), ("Read", "read_by")):
        found = {(r.role, r.name) for r in RIGHTS if (r.kind, r.operation) == ("topic", operation)}
        assert found == {(role, topic.name) for topic in TOPICS for role in getattr(topic, field)}


def test_a_role_describes_the_topics_that_it_uses_and_the_cluster() -> None:
    described = {(r.role, r.name) for r in RIGHTS if r.operation == "DescribeConfigs"}
    used = {(r.role, r.name) for r in RIGHTS if r.operation in {"Read", "Write"}}
    topics = {(role, name) for role, name in used if name in {topic.name for topic in TOPICS}}
    assert described == topics | {(right.role, CLUSTER) for right in RIGHTS}


def test_only_members_read_a_group_and_only_replicas_create_topics() -> None:
    members = {(r.role, r.name) for r in RIGHTS if (r.kind, r.operation) == ("group", "Read")}
    joined = {(role, group) for role, groups in GROUPS.items() for group in groups}
    assert members == joined | {
        ("gpu-consumer", "gpu-p-bulk"),
        ("gpu-consumer", "gpu-p-interactive"),
    }
    creators = {(r.role, r.name) for r in RIGHTS if r.operation == "Create"}
    assert creators == {
        ("gpu-consumer", name) for name in ("attempts", "batches.p.bulk", "batches.p.interactive")
    }


def test_the_autoscaler_reads_offsets_of_two_groups_and_none_of_their_records() -> None:
    measured = {("group", "batcher-bulk"), ("topic", "requests.bulk")}
    measured |= {("group", "results-writer"), ("topic", "results")}
    found = {(r.kind, r.name, r.operation) for r in RIGHTS if r.role == "autoscaler"}
    described = {(kind, name) for kind, name, operation in found if operation == "Describe"}
    assert described == measured | {("group", NO_GROUP)}
    assert not {(kind, name, "Read") for kind, name in measured} & found


def test_a_replica_has_no_right_on_another_pool() -> None:
    """Where pools have users of their own, give each the rights of its pool."""
    others = {right.name for right in role_access(["q"])} - {right.name for right in RIGHTS}
    assert others == {"batches.q.bulk", "batches.q.interactive", "gpu-q-bulk", "gpu-q-interactive"}


def test_every_role_is_known_and_the_finaliser_has_no_right() -> None:
    assert {right.role for right in RIGHTS} == MODULES.keys() - {"finaliser"}
    assert Access("webhooks", "topic", "results", "Read") not in RIGHTS
