"""The intake role: windows, the expander, and chunks on their way to `requests.bulk`."""
