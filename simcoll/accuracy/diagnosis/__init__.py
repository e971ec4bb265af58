"""Judge whether a machine is as fast as its hardware should be and, if not, find the explanation that fits best."""
