"""Explain why a point takes as long as it does, and find what would make it faster.

Takes a point. Returns its critical path, answers to what-if questions, recommendations, and traces for viewers.
"""
