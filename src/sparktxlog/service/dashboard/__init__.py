"""Pages of a node for people: what it knows of the log and of all sites, without a build step."""
