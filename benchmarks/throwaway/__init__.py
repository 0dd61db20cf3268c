"""The peer of the bulk control plane: the same parts wired together without the guarantees."""
