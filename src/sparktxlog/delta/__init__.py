"""The logs of Delta tables, read and written without Spark; no other folder opens one.

Its words are those of the format:

- A *log* is the directory of a table that says what its versions are.
- A *commit* is the file of one version: actions, one a line, that lead there from the version
  before.
- A *checkpoint* is the state of a version in one or more files, so that older commits are not
  needed: *classic* ones are Parquet, in one file or several parts; those of *version 2* have a file
  at the top, and *sidecars* with the actions of files.
- A *live file* is a data file that a version has rows of.  Where rows of it are deleted, a
  *deletion vector* says which, mostly in a file that may have those of several data files.
- A *path in the log* is quoted like a URL; a *path* is that of a file, relative to its table.

log_files        names of the files of a log; which of them make a version
file_paths       paths in the log, paths of files, files of deletion vectors
commit_contents  what a commit says; live files, brought from version to version
commit_files     commits are written by hand, read as actions; torn ones are found
checkpoints      of all forms, as `add` actions; those of twins
classic_checkpoints  of a state at hand, or by delta-rs; and in place of those of version 2
log_segments     the part of a log that a version needs; its protocol and metadata
log_state        a version with all that the log says of it
live_files       the files that readers of a version need
deletion_vectors which rows of a live file a version does not have
"""
