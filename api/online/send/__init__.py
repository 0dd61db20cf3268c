"""Sends an online call as one record on `requests.interactive`."""
