"""What follows from the synchronized queue alone: outcomes, tables, the last writes to them."""
