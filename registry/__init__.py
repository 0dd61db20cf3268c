"""The model registry: models, their immutable versions and pools."""
