"""Goal: whatever the description of the API allows or forbids, the answer is one of those it names.

Requests are generated from `/openapi.json` with a fixed seed: valid ones, and ones that break the
description in one place; for ids that nobody has, and for those of the asker. No server error,
every refusal in the envelope, no status unheard of. `GENERATED_EXAMPLES` says how many for each.
"""

import os
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from api.http.openapi_document import BODIES
from registry.models import ENDPOINTS
from tests.integration.api.every_route.asks import OPEN
from tests.integration.api.every_route.routes import served
from tests.integration.api.every_route.worlds import Two

EXAMPLES = int(os.environ.get("GENERATED_EXAMPLES", "6"))
TIMEOUT_S = 20
CHECKS = [status_code_conformance, content_type_conformance]


@pytest.fixture(scope="session")
def described(two: Two) -> Any:
    answer = two.asking_stranger.get("/openapi.json")
    return schemathesis.openapi.from_dict(answer.json())


def test_the_document_has_every_route_and_body(two: Two) -> None:
    document = two.asking_stranger.get("/openapi.json").json()
    named = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
    }
    with_body = {
        path for path, operations in document["paths"].items() if "requestBody" in str(operations)
    }

    assert named == served().keys() - OPEN
    assert with_body == {*BODIES, *ENDPOINTS, "/v1/files"}
    assert "422" not in document["paths"]["/v1/files"]["get"]["responses"]


PARAMETERS = {
    "file_id": "file",
    "batch_id": "batch",
    "letter_id": "letter",
    "job_id": "job",
    "endpoint_id": "endpoint",
    "custom_id": "item",
    "tenant_id": "tenant",
    "alias": "alias",
    "model_key": "model_key",
}
NOT_DELETED = {"tenant", "alias", "model_key"}
ROUTES = sorted(served().keys() - OPEN, key=lambda route: (route[0] == "DELETE", route))


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.timeout(180 + 2 * EXAMPLES)
def test_every_response_is_documented(
    two: Two, described: Any, method: str, path: str, mode: GenerationMode
) -> None:
    own = {
        parameter: two.asker(path).ids[name]
        for parameter, name in PARAMETERS.items()
        if f"{{{parameter}}}" in path and (method != "DELETE" or name not in NOT_DELETED)
    }
    strategies = described[path][method].as_strategy(generation_mode=mode)
    if own:
        strategies |= described[path][method].as_strategy(generation_mode=mode, path_parameters=own)

    @hypothesis.settings(
        max_examples=EXAMPLES * (2 if own else 1),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=strategies)
    def ask(case: Any) -> None:
        headers = {"authorization": f"Bearer {two.asker(path).key.secret}"}
        response = case.call(two.site.url, session=session, headers=headers, timeout=TIMEOUT_S)
        assert response.status_code < 500 or response.status_code == 503, response.text
        if response.status_code != 405:  # of another path: what was generated held a slash
            case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400:
            error = response.json()["error"]
            assert error.keys() == {"message", "type", "param", "code"}
            assert error["message"]

    with requests.Session() as session:
        ask()
