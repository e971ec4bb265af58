"""Learn from measured tables of clusters: transports between nodes, how wrong the model is, and the board of clusters.

The tables were published by others and are not shipped. `tools/board.py`, `tools/learn_prediction_errors.py` and
`tools/refit.py` take their folder.
"""
