"""Watches a block of code: each function of PyTorch in forward, and each node of the graph in backward."""
