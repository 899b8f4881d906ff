"""Request traces: read, check, slice, rescale, convert, synthesise."""
