"""Acceptance of real drafters on real prompts: read prompts, let the target write, draft, and keep what matched."""
