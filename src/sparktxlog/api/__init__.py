"""What users call: `connect` for Spark, `Client` without Spark, and the work of the jobs."""
