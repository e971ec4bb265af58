"""Judge whether measured times are what the hardware should give and, if not, find the explanation that fits best."""
