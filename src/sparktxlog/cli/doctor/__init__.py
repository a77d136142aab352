"""`sparktxlog doctor`: looks at this machine, a configuration and a node, and says what to mend."""
