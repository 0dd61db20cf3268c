"""The Faust application: streams, ordered acknowledgement and patches of the pinned releases."""
