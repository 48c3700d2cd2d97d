"""Finds a NaN before it happens: which line of a loss can fail, and on which input?

First, the loss runs on inputs that are common in practice, such as zeros, equal rows, an empty mask, or numbers that
have grown. Then the inputs follow the gradient of an operand to the edge of its function. Each input keeps its kind.
Every finding comes from `explain` in such a run, so it is confirmed, not suspected. The report has the nearest input.

Two papers led to this search:

- GRIST (Yan et al., *Exposing Numerical Bugs in Deep Learning via Gradient Back-Propagation*, ESEC/FSE 2021,
  https://github.com/Jacob-yen/GRIST) moves the inputs of a program by the gradient of the operand of an unsafe
  function. The inputs stay between the smallest and the largest number of a batch.
- RANUM (Li et al., *Reliability Assurance for Deep Neural Network Architectures Against Numerical Defects*, ICSE 2023,
  https://arxiv.org/abs/2302.06086, https://github.com/llylly/RANUM) bounds each operand by intervals, confirms a defect
  with an input, and suggests a fix.

This search differs in three points. Common inputs come before the gradient, because a gradient rarely leads to a batch
whose mask is empty. A run in float64 shows whether only an intermediate number was lost. If even float64 fails on an
input, the input counts only if it is near. The fix is one of `explain`'s rewrites, tried on the numbers of the finding.
"""
