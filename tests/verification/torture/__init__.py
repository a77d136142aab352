"""Real nodes under random faults, with a history that is checked against the disks."""
