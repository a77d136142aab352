"""How one epoch orders transactions: rounds, origin queues, the synchronized queue."""
