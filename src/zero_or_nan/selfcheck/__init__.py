"""Checks whether `ignoring` does on your machine what it did when this release was made.

    python -m zero_or_nan.selfcheck [--device DEVICE] [--json]

It runs the book's cases and a sample of PyTorch's own database of operators, with plain PyTorch and with `ignoring`, on
your torch and your device. Then it compares the words for the gradients with the recorded words. It needs only torch.
PyTorch's database also needs numpy and expecttest: if it can't be imported, the check says so and skips the operators.
There are three kinds of differences:

- *broken here*: `ignoring` is not right, and not as recorded.
- *fixed upstream*: plain PyTorch is right, but was not.
- *changed upstream*: plain PyTorch differs in another way, or there was nothing to compare.

Exit status: 0 if everything is as recorded, 1 after a difference, 2 for wrong arguments, 130 if interrupted.

`--json` prints one object to standard output. The same installation prints the same bytes:

- `versions`: `zero_or_nan`, `torch`, `python`, `platform` (system and processor).
- `device`: `type` ("cpu", "cuda", …) and `name`.
- `recorded_with`: the release of torch whose records were used ("2.13"); all records are from CPUs.
- `lacking`: for each private name of PyTorch that the library uses and this PyTorch lacks, a sentence.
- `cases`: a list of `name`, `thread`, `ulps`, and the words `plain` and `ignoring`; `recorded` has the same two.
- `operators`: a list of `name`, the words, `recorded`, and the counts of poisoned samples: `samples`, `contaminated`,
  `fixed`, `broken`, `other_bits`, as `poisoned.Tally` explains them.
- `operators_left_out`: why the operators were skipped, or null.
- `differences`: a list of `kind`, `name`, `method` ("plain" or "ignoring"), `observed`, `recorded`.

A word is one of `words.WORDS`, or one of these: "other bits" if `ignoring` is right, but its bits differ from a finite
element of plain PyTorch's gradient; "not followed" if it warned about a kernel without a rule, which is no difference
on another device than the CPU; "raises X"; "no sample" if an operator could not be tested.

How it works, in order: `words` judges a gradient, `cases` and `poisoned` have the tests, `checking` runs them,
`lacking` looks for private names, and `report` compares and prints.
"""
