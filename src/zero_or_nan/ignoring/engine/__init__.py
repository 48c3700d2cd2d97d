"""One pass of backward, in the order of the flow.

- `passes`: `backward` and `grad`, with PyTorch's own arguments.
- `precheck`: decides whether plain backward is safe, by the tensors that the graph saved.
- `plan`: decides what to do at each node, by its type.
- `masked_pass`: carries masks from node to node, by hooks (`attach`) on PyTorch's own engine.
- `steps`: runs the derivative of one node. There is a class for each method of running it.
- `dispatch`: runs the rule of each operator that a derivative calls.
- `higher`: gradients of gradients.
"""
