"""Goal: capacity records hold what recent results show about the output of tenants."""

from collections.abc import Sequence
from uuid import UUID

from gpu_consumers.engines.engine import EngineAnswer, OnAnswer
from gpu_consumers.flow_control.output_samples import MEANS_MAX, REPEAT_S, OutputSamples
from tests.unit.batcher.builders import job_ref
from tests.unit.gpu_consumers.fakes import FaultyEngine
from tests.unit.gpu_consumers.replicas import BulkReplica, batch_of
from topics.records.codec import decode, encode, kind_headers
from topics.records.records import Capacity, OutputMean

ANSWER = EngineAnswer(200, b"{}", input_tokens=3, output_tokens=100)


def test_means_are_published_when_they_changed_and_not_too_often() -> None:
    samples, job = OutputSamples(), job_ref(7, endpoint="/v1/chat/completions")
    assert samples.means_to_publish(now_s=0.0) is None
    samples.add(job, b"{}", ANSWER)
    mean = (256 + 100) / 2
    assert samples.means_to_publish(now_s=1.0) == [
        OutputMean(job.endpoint, job.tenant_id, mean),
        OutputMean(job.endpoint, None, mean),
    ]
    assert samples.means_to_publish(now_s=9.0) is None  # unchanged
    samples.add(job, b"{}", ANSWER)
    samples.add(job, b"{}", ANSWER)
    assert samples.means_to_publish(now_s=1.0 + REPEAT_S / 2) is None
    assert samples.means_to_publish(now_s=1.0 + REPEAT_S) is not None


def test_failures_and_answers_without_output_teach_nothing() -> None:
    samples, job = OutputSamples(), job_ref(7)
    samples.add(job, b"{}", EngineAnswer(500, b"{}", output_tokens=9))
    samples.add(job, b"{}", EngineAnswer(200, b"{}", input_tokens=9))
    assert samples.means_to_publish(now_s=0.0) is None


def test_the_means_in_a_record_are_bounded() -> None:
    samples = OutputSamples()
    for number in range(2 * MEANS_MAX):
        job = job_ref(7, tenant_id=UUID(int=number), endpoint="/v1/chat/completions")
        samples.add(job, b"{}", ANSWER)
    means = samples.means_to_publish(now_s=0.0)
    assert means is not None
    assert len(means) == MEANS_MAX
    assert means[0].tenant_id == UUID(int=2 * MEANS_MAX - 1)


class CountingEngine(FaultyEngine):
    """Answers each body with 100 tokens of output."""

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str = ""
    ) -> None:
        for index in range(len(bodies)):
            finished(index, ANSWER)


async def test_a_replica_learns_from_its_bulk_items() -> None:
    replica = BulkReplica(engine=CountingEngine())
    replica.start_batch(batch_of(b"{}", b"{}"))
    await replica.wait_ended()
    means = replica.capacity.output_samples.means_to_publish(now_s=0.0)
    assert means is not None
    assert {mean.tokens for mean in means} == {(256 + 100) / 2}  # one sample


def test_old_and_new_versions_read_each_others_records() -> None:
    mean = OutputMean("/v1/completions", None, 12.5)
    new = Capacity("r", 1, "p", "bulk", [0], {}, 1.0, 4, output_means=[mean])
    assert decode(Capacity, encode(new), kind_headers(Capacity)) == new
    names = Capacity.__struct_fields__
    fields = [getattr(new, name) for name in names[: names.index("output_means")]]
    old = decode(Capacity, encode(fields), kind_headers(Capacity))  # type: ignore[arg-type]
    assert old.output_means is None
