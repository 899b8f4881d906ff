"""Results as text for a terminal: from the JSON form, so that a stored result prints the same again."""
