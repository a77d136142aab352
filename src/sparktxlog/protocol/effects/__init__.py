"""What follows from the synchronized queue alone: outcomes, tables, who wrote to them last."""
