"""Bodies in the object store and encrypted bodies, on the way in and out of an engine."""
