"""Puts and commits into a bucket whose way fails: what was acknowledged is there once, and whole.

`workload` puts by many threads and notes what each was told; `judgement` reads the bucket without
the faults, and compares.
"""
