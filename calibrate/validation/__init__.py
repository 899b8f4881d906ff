"""Serve for real, predict the same from a profile, and say how far the prediction was off, beside the noise."""
