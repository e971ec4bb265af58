"""Compare predictions with measured times: join rows, score predictions, fit profiles, and diagnose machines.

Takes measured tables and points of scenarios. Returns errors, fitted profiles, verdicts and reports of studies.
"""
