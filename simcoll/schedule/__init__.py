"""The schedule: who sends which chunk to whom, and the proof that the collective keeps its contract.

From a collective, a number of ranks and an algorithm's name to a proved `Schedule`, or a stream of its steps.
"""
