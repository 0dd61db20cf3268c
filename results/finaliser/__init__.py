"""The finaliser role: output files of settled jobs and their terminal transaction."""
