"""Results as text, pages and tables: from the JSON form, so that a stored result gives the same again."""
