"""Published measurements of speculative decoding: rows, the words that such tables use, and what they leave open."""
