"""Goal: the role serves a signed model and its adapters with vLLM; a refused adapter ends nothing.

One start of vLLM for all cases.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from cli.demo.demo_models import ensure_tiny_llama
from core.clock import SystemClock
from registry.signing.keys import SigningKey
from storage.objects.local_object_store import LocalObjectStore
from tests.integration.gpu_consumers.replica_processes import ReplicaProcess
from tests.integration.gpu_consumers.threaded_replica import BATCHES, batch, items, job
from tests.support.lora_adapters import write_adapter
from tests.support.signed_models import StoredModel, store_model
from tests.support.until import until
from topics.clients.producer import RecordProducer
from topics.records.catalogue import MODELS, RESULTS
from topics.records.codec import decode, encode, kind_headers
from topics.records.model_states import ModelState
from topics.records.records import Batch, Chunk, JobRef, Outcomes
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

KEY = SigningKey.generate()
BODY = b'{"model":"m","messages":[{"role":"user","content":"def"}],"max_tokens":12,"temperature":0}'


def contents_of(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def register(producer: RecordProducer, name: str, model: StoredModel) -> None:
    state = ModelState(name, model.version, "p", 1, base_version=model.manifest.base or "")
    producer.send(
        MODELS.name,
        encode(state),
        partition=0,
        key=f"version:{name}@{model.version}".encode(),
        headers=kind_headers(ModelState),
    )
    producer.flush(40)


def run_item(kafka: KafkaSettings, producer: RecordProducer, of: JobRef) -> tuple[int, object]:
    """Run one item of a job; return its status and answer."""
    results = TopicTailReader(kafka, RESULTS, client_id="test-results")
    content = encode(batch(Chunk(of, items(0, 1, BODY))))
    producer.send(BATCHES.name, content, partition=0, headers=kind_headers(Batch))
    producer.flush(40)
    found = []

    def has_outcome() -> bool:
        for record in results.poll(0.1):
            outcomes = decode(Outcomes, record.value, record.headers)
            found.extend(outcomes.items if outcomes.job.job_id == of.job_id else [])
        return bool(found)

    until(has_outcome, timeout_s=60)
    results.close()
    return found[0].status_code, msgspec.json.decode(found[0].body)


@pytest.mark.timeout(240)
def test_role_serves_a_signed_model_and_its_adapters(
    kafka: KafkaSettings, producer: RecordProducer, tmp_path: Path
) -> None:
    objects = LocalObjectStore(tmp_path / "objects", clock=SystemClock())
    model = store_model(objects, contents_of(ensure_tiny_llama(tmp_path / "tiny")), KEY)
    weights = contents_of(write_adapter(tmp_path / "adapter", 1))
    adapter = store_model(objects, weights, KEY, base=model.version)
    unsigned = store_model(objects, {**weights, "LICENSE": b""}, base=model.version)
    for name, one in {"m": model, "a": adapter, "b": unsigned}.items():
        register(producer, name, one)
    (tmp_path / "keys.pem").write_bytes(KEY.public.pem)
    replica = ReplicaProcess(
        kafka,
        tmp_path,
        "replica",
        MILLRACE_ENGINE_KIND="vllm",
        MILLRACE_ENGINE_MODEL_VERSION=model.version,
        MILLRACE_ENGINE_TRUSTED_KEYS=str(tmp_path / "keys.pem"),
        MILLRACE_ENGINE_WEIGHT_CACHE=str(tmp_path / "cache"),
        MILLRACE_ENGINE_ADAPTERS_MAX="1",
    )
    try:
        until(lambda: replica.metrics().get("millrace_role_ready") == 1, timeout_s=120)
        base = replace(job(1), model_version=model.version)
        status, plain = run_item(kafka, producer, base)
        assert status == 200, plain
        of = replace(job(2), model_version=unsigned.version, base_version=model.version)
        status, answer = run_item(kafka, producer, of)
        assert status == 400
        assert "adapter_refused" in str(answer)
        assert "is not signed" in str(answer)
        of = replace(job(3), model_version=adapter.version, base_version=model.version)
        status, adapted = run_item(kafka, producer, of)
        assert status == 200, adapted
        assert text_of(adapted) != text_of(plain)
    except BaseException as failure:
        failure.add_note(replica.diagnosis()[-8_000:])
        raise
    finally:
        replica.process.kill_and_reap()


def text_of(answer: object) -> str:
    return str(msgspec.convert(answer, dict)["choices"][0]["message"]["content"])
