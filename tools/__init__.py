"""The steps that turn chapters into notebooks, claims and a site, one file a step.

Data flows one way: `pair`, `execute`, `collect`, `record`, `render`; `build` runs them in that order.
"""
