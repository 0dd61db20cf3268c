"""The field `model` of simulated answers: `simulated/<model>`, as the body names the model."""

import msgspec

from gpu_consumers.engines.model_names import other_model


class ShownModel:
    """The names in answers of one engine, or of one of its adapters, as JSON strings.

    The version of an adapter follows after a `+`, so that tests see which adapter was served.
    """

    def __init__(self, served: str, adapter: str = "") -> None:
        """Show the model `served` for bodies that name it, or none."""
        self._served, self._adapter = served, adapter
        self._usual = self._shown(served)

    def of_name(self, asked: str | None) -> bytes:
        """Return the name for a body whose field `model` is `asked`."""
        return self._usual if asked is None or asked == self._served else self._shown(asked)

    def of_body(self, body: bytes) -> bytes:
        """Return the name for a body that is not decoded."""
        return self.of_name(other_model(body, self._served))

    def _shown(self, model: str) -> bytes:
        version = f"+{self._adapter}" if self._adapter else ""
        return msgspec.json.encode(f"simulated/{model}{version}")
