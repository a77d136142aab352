"""Values that masters, their nodes and their disks exchange: messages, events, actions."""
