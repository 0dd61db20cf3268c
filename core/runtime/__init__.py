"""What the process of every role needs: start and end, tasks, logs, metrics and open files."""
