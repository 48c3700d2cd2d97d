"""The NaN before it happens: which line of a loss can fail, and on which input?

A loss is run with inputs that people meet, such as zeros, equal rows, an empty mask, or numbers that have grown. Then
the inputs follow the gradient of an operand to the edge of its function. Each input keeps its kind. A finding is what
`explain` finds in such a run, so it is confirmed and never suspected. The nearest input is reported.

Two papers lead here:

- GRIST (Yan et al., *Exposing Numerical Bugs in Deep Learning via Gradient Back-Propagation*, ESEC/FSE 2021,
  https://github.com/Jacob-yen/GRIST) moves the inputs of a program by the gradient of the operand of an unsafe
  function. The inputs stay between the smallest and the largest number of a batch.
- RANUM (Li et al., *Reliability Assurance for Deep Neural Network Architectures Against Numerical Defects*, ICSE 2023,
  https://arxiv.org/abs/2302.06086, https://github.com/llylly/RANUM) bounds each operand by intervals, confirms a defect
  with an input, and suggests a fix.

Three things are different here. Inputs that people meet come before the gradient, because few steps of a gradient lead
to a batch whose mask is empty. A run in float64 tells whether a number was only lost on the way, and an input on which
even float64 fails has to be near. The fix is one of `explain`'s rewrites, tried on the numbers of the finding.
"""
