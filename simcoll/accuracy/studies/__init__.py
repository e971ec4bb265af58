"""Run validation studies: measure or read tables, fit some rows, score the predictions of the others, and report."""
