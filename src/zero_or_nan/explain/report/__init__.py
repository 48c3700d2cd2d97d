"""The report: what the user reads about births, as text, as HTML and as JSON."""
