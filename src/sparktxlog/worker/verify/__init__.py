"""Recounts of tables, comparison of sites, and the causes of differences.

verify            a full scan of a replica's tables, for people or for the node
recount_schedule  recounts every `verify-interval`
histories         what sites reported, by position
comparing         where sites began to differ
one_at_a_time     one verification, one maintenance of a lake at a time
watching          progress of work that reports only its end
"""
