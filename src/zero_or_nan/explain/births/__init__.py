"""Births: which elements of NaN and infinity were born in which call, and why, and where they went."""
