"""Structured streaming with the data source `txlog`: see docs/streams.md."""
