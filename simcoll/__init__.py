"""simcoll: a discrete-event network simulator of collective algorithms."""

__version__ = "0.1.0"
