"""Replaces the renderings that are kept in the repository: `make chart-golden`."""

from tests.chart.tools import rendering
from tests.support.chart import DIGEST, GOLDEN, RENDERINGS, kept_text, sources_digest


def main() -> None:
    """Render each example."""
    for name in RENDERINGS:  # `spot` comes before what is kept as its difference
        (GOLDEN / f"{name}.yaml").write_text(kept_text(name, rendering(name)))
    DIGEST.write_text(sources_digest() + "\n")


if __name__ == "__main__":
    main()
