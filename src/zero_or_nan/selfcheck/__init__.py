"""A reader's own check: does `ignoring` do on this machine what it did when this release was made?

    python -m zero_or_nan.selfcheck [--device DEVICE] [--json]

It runs the book's cases and a sample of PyTorch's own database of operators, by plain PyTorch and by `ignoring`, on the
torch and the device that are here, and compares the words for their gradients with the recorded ones. It needs torch
and nothing else; where PyTorch's database can't be imported, since it needs numpy and expecttest, it says so and leaves
the operators out. A difference is one of three:

- *broken here*: `ignoring` is not right.
- *fixed upstream*: plain PyTorch is right, where it was not.
- *changed upstream*: plain PyTorch differs in another way, or there was nothing to compare.

Exit status: 0 when all is as recorded, 1 after a difference, 2 for a wrong use, 130 when interrupted.

`--json` prints one object, to the standard output, the same bytes for the same installation:

- `versions`: `zero_or_nan`, `torch`, `python`, `platform` (system and processor).
- `device`: `type` ("cpu", "cuda", …) and `name`.
- `recorded_with`: the release of torch that was compared with ("2.13"); records were made on CPUs.
- `lacking`: for each private name of PyTorch that the library uses and this PyTorch lacks, a sentence.
- `cases`: a list of `name`, `thread`, `ulps`, and the words `plain` and `ignoring`; `recorded` has the same two.
- `operators`: a list of `name`, the words, `recorded`, and the counts of poisoned samples: `samples`, `contaminated`,
  `fixed`, `broken`, `other_bits`, as `poisoned.Tally` explains them.
- `operators_left_out`: why there are none, or null.
- `differences`: a list of `kind`, `name`, `method` ("plain" or "ignoring"), `observed`, `recorded`.

A word is one of `words.WORDS`; or "other bits", when `ignoring` is right and yet not bit for bit what plain PyTorch
gives where that is finite; "not followed", when it met a kernel that it has no rule for, and warned, which on another
device than the CPU is no difference; "raises X"; "no sample", when an operator could not be asked.

How it works, in the order of the flow: `words` judges a gradient, `cases` and `poisoned` are what is asked, `checking`
asks, `lacking` looks for private names, and `report` compares and prints.
"""
