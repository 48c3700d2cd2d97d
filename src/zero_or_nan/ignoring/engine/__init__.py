"""One backward pass: the functions that a user calls, the plan of a pass, and the pass itself.

- `passes`: `backward` and `grad`.
- `precheck`: decides whether plain backward is safe.
- `plan`: decides what to do at each node.
- `masked_pass`: carries masks from node to node. `steps`: run the derivative of one node.
- `dispatch`: runs the rule of each operator that a derivative calls.
- `higher`: gradients of gradients.
"""
