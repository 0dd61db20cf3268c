"""The finaliser role: output files and terminal states of settled jobs."""
