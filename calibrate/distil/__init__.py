"""A small draft model distilled from a target: what the target writes by itself, and training on how it writes it."""
