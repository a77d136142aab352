"""Is it well?  Pure functions judge what is known; no other folder judges.

    verdicts           one verdict for each site and for the cluster, and what to look at
    readiness          whether one node can serve, for `/readyz`
    survival           what the loss of each site would lose, and what a site lacks
    transaction_words  what became of a transaction
    cluster_status     a status that shows itself

Facts are `/v1/status` as it comes from a node, which may be of an older release and lack fields.
"""
