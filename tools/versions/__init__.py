"""Runs everything on other versions of PyTorch, and the tests of other projects with `ignoring`."""
