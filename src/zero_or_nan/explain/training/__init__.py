"""Explains a training step when it fails: a decorator for your own step, and the base of a trainer's callback."""
