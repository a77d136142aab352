"""The journal: what a node must not forget, in `front.sqlite` and the id files beside it."""
