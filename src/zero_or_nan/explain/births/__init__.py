"""Births: in which call each NaN or infinity was born, why, and where it went."""
