"""Groups of sites at a node: what of a transaction is for which sites, and how each group is."""
