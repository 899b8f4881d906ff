"""Timing real passes on the device at hand: which points, how often, on which clock."""
