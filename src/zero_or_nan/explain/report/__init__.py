"""The report: what a reader gets to read about births, as text, as HTML and as JSON."""
