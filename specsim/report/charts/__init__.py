"""Charts of reports as inline SVG: the only home of matplotlib, which is imported when a chart is drawn."""
