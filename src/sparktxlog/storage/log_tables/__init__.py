"""The Delta tables in `log/`: the synchronized queue, histories and the quarantine."""
