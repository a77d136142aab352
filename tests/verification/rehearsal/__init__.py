"""Rehearses on scratch nodes what users fear, and measures it: a lost site, a cut, a restore.

drill_writers  one writer for each site, which commits without a pause
rehearsing     the scratch nodes, the faults, and what they cost the writers
"""

from __future__ import annotations
