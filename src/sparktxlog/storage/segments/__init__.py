"""Published segments: ordered transactions become files and rows for the workers."""
