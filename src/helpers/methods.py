"""The methods that the pages compare.

A claim names its method. A misspelt name is therefore an error and not a new column. To add a method, call `register`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """A method compared on a page.

    `name` is the word in code, tables and machine-readable claims. `title` is the header of a column. `summary` says in
    one sentence what the method does.
    """

    name: str
    title: str
    summary: str


METHODS: dict[str, Method] = {}
"""Every registered method, by its name, in the order of registration."""


def register(name: str, title: str, summary: str) -> Method:
    """Register a method under `name`, so that claims can name it.

    Raises:
        ValueError: if another method already has this name.
    """
    if name in METHODS:
        raise ValueError(f"the method {name!r} is already registered, as: {METHODS[name].summary} Choose another name.")
    METHODS[name] = Method(name, title, summary)
    return METHODS[name]


def method(name: str) -> Method:
    """The method registered under `name`.

    Raises:
        KeyError: if there is no such method. The message lists all methods.

    >>> method("vanilla").title
    'vanilla'
    """
    if name not in METHODS:
        raise KeyError(
            f"no method is called {name!r}; the methods are {', '.join(METHODS)}. "
            "To add one, call helpers.methods.register"
        )
    return METHODS[name]


register("vanilla", "vanilla", "Plain PyTorch: the forward code as everyone writes it, then `backward`.")
register(
    "masked", "masked", "The forward code rewritten for `torch.masked`: elements that do not count carry mask False."
)
register("ignoring", "ignoring", "Plain PyTorch's forward code, then `zero_or_nan.ignoring.backward`.")
register(
    "double where",
    "double where",
    "Plain PyTorch with a second `where` that puts a harmless number in before the dangerous function.",
)
register("clamp first", "clamp first", "Plain PyTorch with the input clamped to where the function is finite.")
register("select first", "select first", "Plain PyTorch with the selection moved before the dangerous function.")
register(
    "gradients selected",
    "gradients selected",
    "Both branches of a `where` differentiated in full, then a `where` between the finished gradients.",
)
register("idiom", "idiom", "Plain PyTorch with the expression to write instead, from the atlas of undefined points.")
register("scrub", "scrub", "Plain PyTorch, then NaN replaced by 0 in the finished gradient.")
register("hook", "hook", "Plain PyTorch, with a backward hook on an input that replaces its gradient's NaN by 0.")
register(
    "hook on result",
    "hook on y",
    "Plain PyTorch, with a backward hook on the result of the dangerous function instead.",
)
register(
    "module hook",
    "module hook",
    "Plain PyTorch in a module, whose backward hook replaces NaN by 0 in the gradients of the module's inputs.",
)
register(
    "substitute",
    "substitute",
    "Plain PyTorch with a harmless number in place of the dangerous input, and no selection.",
)
register("multiply", "times mask", "Plain PyTorch with the result multiplied by a mask of zeros and ones.")
register("nan_to_num", "nan_to_num", "Plain PyTorch with `nan_to_num` on the result, in the forward pass.")
register("epsilon", "epsilon", "Plain PyTorch with a small number added, or with a bound, that keeps the slope finite.")
register("clip", "clip", "Plain PyTorch, then `clip_grad_norm_`.")
register("clip or stop", "clip or stop", "Plain PyTorch, then `clip_grad_norm_` with `error_if_nonfinite=True`.")
register("float64", "float64", "The vanilla code in float64.")
register(
    "finite differences",
    "finite differences",
    "The slope of the function itself over a small step: (f(x + h) − f(x)) / h.",
)
register("jacobian", "Jᵀv", "The Jacobian built in full by `torch.func.jacrev`, then multiplied by the cotangent.")
register("formula", "−1/a²", "The derivative of 1/a as school writes it: −1 / a².")
register("formula reordered", "−(1/a)·(1/a)", "The same derivative, multiplied in the order in which autograd does it.")
register("explain", "explain", "Plain PyTorch inside of `zero_or_nan.explain`: what its report says.")
