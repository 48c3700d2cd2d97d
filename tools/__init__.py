"""The commands that work on the book: they build it, draw its pages, measure, and follow new versions.

`project` knows where the files are. `python -m tools COMMAND` runs a command.
"""
