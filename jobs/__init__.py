"""Jobs: their rows, states and files, the intake role (input files to records), and the outbox."""
