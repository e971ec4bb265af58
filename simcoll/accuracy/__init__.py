"""Compare predictions with measured times: join, score, fit profiles, and diagnose machines.

Takes measured tables and points of scenarios. Returns errors, fitted profiles, verdicts and reports of studies.
"""
