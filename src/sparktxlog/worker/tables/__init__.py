"""What is done to tables of either kind; it asks for the kind only where the kinds differ."""
