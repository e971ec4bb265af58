"""Learn from measured tables of clusters: fit transports (networks) between nodes, estimate the model's errors, and
write the board of clusters.

Others published these tables, so simcoll does not ship them. `tools/board.py`, `tools/learn_prediction_errors.py` and
`tools/refit.py` take the folder of tables as an argument.
"""
