"""Exhaustive exploration of small clusters: every order of events, with the real core.

`configurations` says what is explored, `transactions` what is committed in it, `space` walks
through all reachable states breadth first, `nodes` lets one master take one step, `canonical` says
when two masters are in the same state, `checks` asserts the invariants of the protocol in every
state, `outcomes` judges what becomes of each transaction, `healing` runs the last states on to see
that they heal.  `python -m tests.verification.exploration` (`make explore`) runs it.
"""
