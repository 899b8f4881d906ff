"""Terms of latency profiles from measured points. No torch: a laptop can fit what a GPU box measured."""
