"""The families of functions: what is known of PyTorch's functions, one family in each file.

A file has four kinds of entries, all for the same functions:

- `numerics`: the names of a function, and where its value or its slope is no number. Only `explain` reads them.
- `function`: the record of a forward function. It says whether the function selects, and which saved tensors its
  derivative multiplies by. A function without a record selects nothing, and the precheck never calls it safe.
- `transfer`: how a mask goes through a derivative that plain PyTorch runs, because the saved tensors are safe or
  because the result can be repaired.
- `rule` and `derivative`: what an operator of the derivative, or the whole derivative, does to a `Cotangent`.

Every function needs rules for the operators of its derivative. Transfers only save time: a transferred node costs one
hook and a little arithmetic on the mask, while an interpreted node costs two hooks and a rule for each operator. The
downside is that a transfer repeats, for one function, what the rules of its operators say together. The tests run
random programs both as planned and by rules alone, and compare the results.
"""

from . import (
    attention,
    convolutions,
    distances,
    gates,
    grouped,
    linear_algebra,
    losses,
    norms,
    pointwise,
    products,
    recurrent,
    reductions,
    sampling,
    selections,
    shapes,
    softmax,
    sparse,
    spreading,
    stepwise,
)
