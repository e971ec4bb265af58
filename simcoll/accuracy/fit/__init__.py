"""Fit the parameters of a profile to measured tables."""
