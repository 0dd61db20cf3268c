"""Bodies of items and answers: in the object store, encrypted, and stamped with the model."""
