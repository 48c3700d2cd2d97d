"""What few programs need. Each extra registers itself, and can be deleted without changing anything else.

- `compiled`: follows regions that `torch.compile` compiled.
- `tape`: follows what a user's own derivative does, without a record.
- `func`: `torch.func`, and `ignoring.grad` inside of its transforms.
- `distributed`, `jagged`: two more forms of tensors.
- `counts`: counts the ignored elements that are not finite.

The engine imports none of them. It asks the lists into which they put themselves: the forms of tensors
(`masks.numbers.register`), the steps of Functions in Python (`engine.plan.chooses_step`), what computes the result of
`grad` in another way (`engine.passes.takes_over`), and what counts (`engine.passes.COUNTING`).
"""

from . import compiled, counts, distributed, func, jagged, tape

__all__ = ["compiled", "counts", "distributed", "func", "jagged", "tape"]
