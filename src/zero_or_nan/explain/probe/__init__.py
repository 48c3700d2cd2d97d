"""The NaN before it happens: which line of a loss can fail, and on which input?"""
