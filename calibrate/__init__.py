"""Measures drafting, verifying and accepting with torch on the device at hand. The only home of torch."""
