"""The expansion of jobs: windows, the expander, and chunk records for `requests.bulk`."""
