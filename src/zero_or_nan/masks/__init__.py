"""Masks, and tensors that have one. A mask is True at each element that counts.

- `mask`: the arithmetic of masks.
- `numbers`: where a tensor has its numbers, and whether they are finite.
- `cotangent`: the tensor with a mask that a derivative gets, and the functions that every rule needs.
- `in_place`: writes into cotangents, and views of them.
- `trees`: tensors in nested tuples, lists and dicts.
- `watching`: sees the operators that a derivative calls, also those without a cotangent.
"""
