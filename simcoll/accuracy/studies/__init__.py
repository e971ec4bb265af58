"""Studies: what is run for real, which rows are fitted, how well the others are predicted, and the report of it."""
