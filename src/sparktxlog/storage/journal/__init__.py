"""The journal: what a node must not forget, in `journal.sqlite` and the id files next to it."""
