"""Step 5 of an online call: the answer or the stream to the client."""
