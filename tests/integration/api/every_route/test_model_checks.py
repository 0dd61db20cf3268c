"""Goal: operators add models without files, and check and plan versions, over the API."""

from typing import Any
from uuid import uuid4

import msgspec
import pytest

from registry.manifests.model_objects import file_key
from registry.unverified_version import unverified_version
from tests.integration.api.answers import ok, refused
from tests.integration.api.every_route.test_model_routes import MODELS, UNVERIFIED, Publisher
from tests.integration.api.every_route.worlds import Two
from tests.support.lora_adapters import base_weights
from tests.support.signed_models import store_model

pytestmark = pytest.mark.timeout(180)  # the first test starts the whole API


@pytest.fixture
def publisher(two: Two) -> Publisher:
    publisher = Publisher(two)
    ok(publisher.trust())
    return publisher


def test_a_model_of_an_http_server_is_registered_by_what_determines_it(two: Two) -> None:
    body: dict[str, Any] = {
        "name": f"org/{uuid4().hex}",
        "engine": "openai_http",
        "endpoints": ["/v1/chat/completions"],
        "upstream": "https://example.com/v1",
    }
    added = ok(two.asking_operator.post(UNVERIFIED, json=body))
    assert (added["version"], added["verification"]) == (
        unverified_version("openai_http", body["upstream"], {}),
        "unverified",
    )
    assert added["pool"].endswith(added["version"][:12])
    again = ok(two.asking_operator.post(UNVERIFIED, json=body))
    assert again["id"] == added["id"]
    signed = two.asking_operator.post(UNVERIFIED, json=body | {"engine": "vllm"})
    assert refused(signed, 400)["code"] == "model_refused"


def test_a_stored_version_is_checked_by_reading_it_again(publisher: Publisher) -> None:
    made = publisher.push(uuid4().hex)
    parameters = {"model": made["id"]}
    found = ok(publisher.client.get("/v1/admin/model_check", params=parameters))
    assert found["is_sound"]
    assert {part["kind"] for part in found["parts"]} == {"manifest", "signature", "file"}

    lost = publisher.push(uuid4().hex)
    shown = ok(publisher.client.get(f"{MODELS}/{lost['id']}"))
    publisher.two.site.objects.delete(file_key(shown["manifest"]["files"][0]["sha256"]))
    found = ok(publisher.client.get("/v1/admin/model_check", params={"model": lost["id"]}))
    assert not found["is_sound"]
    assert [part["kind"] for part in found["parts"] if part["problem"]] == ["file"]
    plan = publisher.client.get("/v1/admin/model_plan", params={"model": lost["id"]})
    assert refused(plan, 400)["code"] == "model_refused"


def test_the_memory_plan_of_a_stored_version_is_shown(publisher: Publisher) -> None:
    contents = {"model.safetensors": base_weights(), "config.json": msgspec.json.encode(_CONFIG)}
    stored = store_model(publisher.two.site.objects, contents, publisher.signer.key)
    made = ok(publisher.register(stored.version))
    parameters = {"model": made["id"], "device_gib": "8"}
    plan = ok(publisher.client.get("/v1/admin/model_plan", params=parameters))
    assert plan["fits"]
    assert plan["device_bytes"] == 8 * 2**30
    assert plan["stored_bytes"] > 0
    wrong = publisher.client.get("/v1/admin/model_plan", params=parameters | {"device_gib": "0"})
    assert refused(wrong, 400)["param"] == "device_gib"


_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "vocab_size": 1000,
    "torch_dtype": "float16",
}
