"""Predictions against measured times: joined, scored, and parameters fitted to them."""
