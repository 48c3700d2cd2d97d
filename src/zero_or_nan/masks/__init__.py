"""Cotangents that know which of their elements the loss ignored: the masks, and the tensor that has one.

- `mask`: the arithmetic of masks. True means that the element counts.
- `cotangent`: the tensor that a derivative gets, and the functions that every rule needs.
- `in_place`: writes into cotangents, and views of them.
"""
