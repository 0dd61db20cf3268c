"""Answers an online call: the response or the stream to the client."""
