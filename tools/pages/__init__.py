"""What draws pages: the theme, and Sphinx extensions that put tables, pictures and indexes into them."""
