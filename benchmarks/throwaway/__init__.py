"""The peer of the bulk control plane: the same components without the guarantees."""
