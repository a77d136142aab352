"""What masters, their shells and their disks say to each other: values only."""
