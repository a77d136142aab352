"""What `jobs/*.py` and the commands of the same names do: options, work, exit codes."""
