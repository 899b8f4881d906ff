"""The questions a planner asks: cost surface, paired simulations over load, crossovers, capacity, recommendation."""
