"""Trees: tensors in tuples, lists, dicts, and classes that are registered with PyTorch, at any depth."""

from __future__ import annotations

from torch.utils import _pytree

TreeSpec = _pytree.TreeSpec
broadcast_to_and_flatten = _pytree._broadcast_to_and_flatten
keystr = _pytree.keystr
tree_flatten = _pytree.tree_flatten
tree_flatten_with_path = _pytree.tree_flatten_with_path
tree_leaves = _pytree.tree_leaves
tree_map = _pytree.tree_map
tree_map_only = _pytree.tree_map_only
tree_unflatten = _pytree.tree_unflatten
