"""What `jobs/*.py` and the commands of the same names do: options, exit codes, work."""
