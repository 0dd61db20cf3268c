"""Goal: batchers know what tokens cost a pool, and how long a batch takes."""

import pytest

from batcher.policy.compute_model import ComputeModel
from core.compute import OUTPUT_WEIGHT_PRIOR, PROMPT_TOKEN_S_PRIOR
from tests.unit.batcher.builders import capacity
from topics.records.records import EndpointCompute

CHAT = "/v1/chat/completions"


def test_a_cold_pool_has_the_prior() -> None:
    model = ComputeModel()
    assert model.output_weight("p", CHAT) == OUTPUT_WEIGHT_PRIOR
    seconds = model.batch_s(capacity(8), CHAT, prompt=1000, output=0)
    assert seconds == pytest.approx(1000 * PROMPT_TOKEN_S_PRIOR)


def test_a_pool_has_the_mean_of_its_replicas() -> None:
    model = ComputeModel()
    for number in range(400):
        output_s = 0.002 if number % 2 else 0.004
        model.record_capacity(capacity(8, compute=[EndpointCompute(CHAT, 0.001, output_s)]))
    assert model.output_weight("p", CHAT) == pytest.approx(3.0, rel=0.1)
    assert model.output_weight("q", CHAT) == OUTPUT_WEIGHT_PRIOR


def test_a_batch_waits_for_the_items_before_it() -> None:
    model = ComputeModel()
    model.record_capacity(capacity(8, compute=[EndpointCompute(CHAT, 0.001, 0.01)]))
    replica = capacity(8, items_per_s=4.0, concurrency=8)
    seconds = model.batch_s(replica, CHAT, prompt=100, output=50)
    assert seconds == pytest.approx(8 / 4 + 0.1 + 0.5)


def test_rates_that_are_not_positive_are_ignored() -> None:
    model = ComputeModel()
    model.record_capacity(capacity(8, compute=[EndpointCompute(CHAT, 0.0, 0.01)]))
    assert model.output_weight("p", CHAT) == OUTPUT_WEIGHT_PRIOR
