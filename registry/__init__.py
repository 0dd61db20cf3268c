"""Models, their immutable versions and where they are served."""
