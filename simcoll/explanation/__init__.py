"""Explain why a point takes as long as it does, and find what would be faster.

Takes a point. Returns its critical path, what-if answers, recommendations and traces.
"""
