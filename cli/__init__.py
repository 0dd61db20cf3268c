"""The `millrace` command: run a role, run the embedded stack, submit and watch jobs."""
