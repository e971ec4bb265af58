"""Parameters of the model found from measured tables."""
