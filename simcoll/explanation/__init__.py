"""Why a point takes as long as it does, and what would be faster.

Takes a point. Gives its critical path, what-ifs, recommendations and traces.
"""
