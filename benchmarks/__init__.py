"""Measurements of whole ways through the system, peers measured in the same run.

`make bench` runs all of them; `python -m benchmarks --only ordering --short` one, smaller.
Nothing here asserts: a figure that falls short is reported as such.
"""
