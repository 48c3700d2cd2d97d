"""The steps of a pass. A step is the run of one node's derivative.

- `step`: PyTorch's own derivatives, on cotangents.
- `transferred`: derivatives that plain PyTorch runs, some of whose results a second formula repairs.
- `foreign`: derivatives that are not PyTorch's own code.
- `recomputed`: checkpoints. `sliced`: writes into a slice.

`plan` chooses the step by the type of the node.
"""
