"""Step 4 of an online call: waiting for the reply, with deadline and caller heartbeat."""
