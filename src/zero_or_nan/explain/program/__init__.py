"""The user's program, as `explain` reads it: the numbers of its tensors, its functions, and its lines of code."""
