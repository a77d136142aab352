"""Judges replicas and decides how they catch up; decisions only, no I/O."""
