"""The Faust application: streams, acknowledgement in order, and patches of the pinned release."""
