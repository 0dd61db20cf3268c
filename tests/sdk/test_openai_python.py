"""Goal: every supported release of the official client works unmodified.

Each check is one test.
"""

from functools import partial

import pytest

from tests.sdk.checks.catalogue import SIMULATED, checks
from tests.sdk.runs import VERSIONS, Reports, reports_of
from tests.sdk.sites import simulated_site
from tests.support.stacks import Stack

pytestmark = pytest.mark.timeout(400)  # the first test includes environment, stack and all checks


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, stack: Stack) -> Reports:
    """The reports of the simulated engine."""
    return reports_of(request, "test_on_the_simulated_engine", partial(simulated_site, stack))


@pytest.mark.parametrize(
    ("version", "check"), [(v, check) for v in VERSIONS for check in checks(SIMULATED, v)]
)
def test_on_the_simulated_engine(version: str, check: str, reports: Reports) -> None:
    if failure := reports(version)[check]:
        pytest.fail(failure, pytrace=False)
