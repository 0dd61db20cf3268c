"""Goal: jobs whose version no replica has take no part in windows, and all others do."""

from types import SimpleNamespace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from jobs.expansion.load_cache import OpenLoads
from jobs.expansion.load_sums import JobLoad, LoadSums
from jobs.expansion.pool_versions import UNLISTED, has_versions, required_text, required_versions

POOLS = ("p", "q")
VERSIONS = ("v1", "v2", "v1\nv2")


def load(number: int, pool: str, versions: str) -> JobLoad:
    """Return the load of a job with 40 outstanding items and 60 to emit."""
    tenant = UUID(int=number % 2)
    return JobLoad(UUID(int=number), tenant, pool, 100, 40, 0, required_versions=versions)


steps = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 5), st.sampled_from(POOLS), st.sampled_from(VERSIONS)),
        st.dictionaries(
            st.sampled_from(POOLS),
            st.sampled_from([frozenset({"v1"}), frozenset({"v2"}), frozenset({"v1", "v2"})]),
        ),
        st.integers(0, 5),
    ),
    max_size=40,
)


@given(steps)
def test_sums_are_those_of_the_jobs_whose_versions_are_served(
    steps: list[tuple[int, str, str] | dict[str, frozenset[str]] | int],
) -> None:
    loads, known = OpenLoads(), dict[UUID, JobLoad]()
    for step in steps:
        if isinstance(step, dict):
            loads.versions.update(step)
            loads._apply_versions()
        elif isinstance(step, int):
            known.pop(UUID(int=step), None)
            loads.replace(UUID(int=step), None)
        else:
            new = load(*step)
            known[new.job_id] = new
            loads.replace(new.job_id, new)
        served = [
            one
            for one in known.values()
            if has_versions(loads.versions.by_pool, one.pool, one.required_versions)
        ]
        assert loads.sums == LoadSums.of(sorted(served))
        assert sorted(loads.counted()) == sorted(served)
        assert [one for one in known.values() if loads.find(one.job_id)] == [
            one for one in known.values() if one in served
        ]


def test_a_job_needs_all_of_its_versions() -> None:
    pools = {"p": frozenset({"v1", "v3"})}
    assert has_versions(pools, "p", "v1\nv3")
    assert not has_versions(pools, "p", "v1\nv2")
    assert has_versions(pools, "q", "v2")  # nothing is known of its replicas


def test_a_replica_that_lists_no_versions_runs_what_is_not_a_digest() -> None:
    digest = "1" * 64
    pools = {"p": frozenset({digest, UNLISTED})}
    assert has_versions(pools, "p", f"{digest}\nwithout a digest")
    assert not has_versions(pools, "p", "2" * 64)


def test_an_adapter_needs_a_replica_of_its_base_that_takes_adapters() -> None:
    needed = required_text("a1", "v1")
    assert not has_versions({"p": frozenset({"v1", UNLISTED})}, "p", needed)
    assert has_versions({"p": frozenset({"v1", "v1+"})}, "p", f"v1\n{needed}")


def test_a_batch_without_a_verdict_needs_no_version() -> None:
    needed = required_versions(SimpleNamespace(model=None, model_version=None, models=None))
    assert needed == ""
    assert has_versions({"pool": frozenset({"v1"})}, "pool", needed)
