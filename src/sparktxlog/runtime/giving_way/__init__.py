"""What a node keeps of a history that it gives up for another one."""
