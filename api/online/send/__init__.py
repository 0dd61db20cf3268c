"""Step 3 of an online call: one record on `requests.interactive`."""
