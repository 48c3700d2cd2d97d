"""What works on the book: `steps` build it, `pages` draw it, `measure` measures it.

`project` knows where things are; `python -m tools COMMAND` runs each.
"""
