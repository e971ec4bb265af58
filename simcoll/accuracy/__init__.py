"""Predictions against measured times: joined, scored, fitted, diagnosed.

Takes measured tables and points. Gives errors, profiles, verdicts and the accuracy board.
"""
