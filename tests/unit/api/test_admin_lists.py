"""Goal: operators see which versions a pool has warm, and which replicas load or refused theirs."""

from api.admin.admin_list_routes import _pool_object, _replica_object
from topics.records.records import Capacity, LoadedModel

WARM = LoadedModel("v1", "warm", "e1", ["a1"], adapters_max=2)


def report(replica: str, *models: LoadedModel, available: bool = True) -> Capacity:
    return Capacity(replica, 1, "p", "bulk", [0], {}, 10.0, 4, available, models=[*models])


def model_of(capacity: Capacity) -> dict[str, object]:
    """Return the only model that operators see of a replica."""
    models = _replica_object(capacity)["models"]
    assert isinstance(models, list)
    (model,) = models
    assert isinstance(model, dict)
    return model


def test_a_pool_counts_replicas_that_serve_and_names_their_versions() -> None:
    reports = [
        report("r1", WARM),
        report("r2", LoadedModel("v2", "warm"), available=False),
        report("r3", LoadedModel("v3", "loading"), available=False),
        report("r4", LoadedModel("v4", "refused", reason="signature"), available=False),
        report("r6", LoadedModel("v4", "refused", reason="signature"), available=False),
        report("r5"),
    ]
    classes = _pool_object("p", {}, reports)["classes"]
    assert isinstance(classes, dict)
    assert classes["bulk"] == {
        "replicas": 3,
        "available_replicas": 2,
        "loading_replicas": 1,
        "refused_replicas": 2,
        "refusals": {"signature": 2},
        "warm_versions": ["v1"],
        "items_per_s": 20.0,
        "concurrency": 8,
    }


def test_a_replica_shows_its_models() -> None:
    assert _replica_object(report("r1", WARM))["models"] == [
        {
            "version": "v1",
            "state": "warm",
            "engine_hash": "e1",
            "adapters": ["a1"],
            "adapters_max": 2,
            "reason": None,
        }
    ]
    loading = _replica_object(report("r1", LoadedModel("", "loading"), available=False))
    assert loading["models"] == [
        {
            "version": None,
            "state": "loading",
            "engine_hash": None,
            "adapters": [],
            "adapters_max": 0,
            "reason": None,
        }
    ]
    refused = LoadedModel("v1", "refused", reason="signature")
    assert model_of(report("r1", refused, available=False))["reason"] == "signature"
