"""Where bytes lie: a directory of this machine, or a bucket of S3, Azure or Google Cloud."""
