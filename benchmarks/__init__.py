"""How fast simcoll is: `make bench`, or `python -m benchmarks` at the top of the repository."""
