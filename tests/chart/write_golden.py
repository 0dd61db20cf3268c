"""Replaces the renderings that are kept in the repository: `make chart-golden`."""

from tests.chart.tools import rendering
from tests.support.chart import DIGEST, GOLDEN, RENDERINGS, normalised, sources_digest


def main() -> None:
    """Render each example."""
    for name in RENDERINGS:
        (GOLDEN / f"{name}.yaml").write_text(normalised(rendering(name)))
    DIGEST.write_text(sources_digest() + "\n")


if __name__ == "__main__":
    main()
