"""The schedule: who sends which chunk to whom, and the proof that this yields the collective's result.

Takes a collective, a number of ranks and an algorithm's name. Returns a proved `Schedule`, or a stream of its steps.
"""
