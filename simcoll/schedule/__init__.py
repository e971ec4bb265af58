"""The schedule: who sends which chunk to whom, and the proof that the collective keeps its contract.

Takes a collective, a number of ranks and an algorithm's name. Gives a proved `Schedule`, or a stream of its steps.
"""
