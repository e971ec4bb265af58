"""Run validation studies: measure or read tables, fit some rows, score predictions of the other rows, and report."""
