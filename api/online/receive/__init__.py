"""Step 1 of an online call: the request is read and parsed."""
