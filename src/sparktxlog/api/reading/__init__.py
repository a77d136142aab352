"""What is read: from which position on, views of the log, and the site's tables."""
