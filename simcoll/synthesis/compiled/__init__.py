"""Loops over graphs that run as plain Python or compiled; see `simcoll.config.numba_loader`."""
