"""Whether measured times are what the hardware should give and, if not, what explains them best."""
