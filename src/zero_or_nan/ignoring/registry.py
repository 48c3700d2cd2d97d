"""What `ignoring` knows about PyTorch: a record for each forward function, and a rule for each operator in backward."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch

from .authoring import checked, result_check
from .conditions import NEVER, Condition
from .fills import FORMULAS, is_fill
from .graph import NODES, function_of
from .masks import Mask

GENERATED = "GeneratedBackwardFor_"
"""The prefix of the name of each Function that `torch.library` makes, one for each overload of an operator."""

NEWEST = (2, 15)
"""The newest release whose names were checked. On a later release, a missing name is not an error."""

Rule = Callable[..., Any]
Derivative = Callable[[Any, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Function:
    """The record of a forward function: what `ignoring` knows about it.

    For your own code, set only `selects`, `moves` and `safe_if`. The other fields are for PyTorch's own functions.

    Attributes:
        selects: whether a zero that the derivative writes means "not selected": the function's result would be the
            same for any value of that element. If this depends on the call, give a function that takes the node and
            returns a bool.
        compares: whether the function selects by comparing numbers. If so, an element that was compared with NaN counts
            as used, because a comparison with NaN selects nothing.
        moves: whether the derivative only moves elements or adds them. If so, the derivative is also applied to the
            mask.
        safe_if: a condition on the tensors that the function saved, for your own code by `save_for_backward`. If the
            condition holds, plain backward gives the right gradient.
        safe_if_saved: conditions for individual saved tensors, by name, in place of `safe_if`.
        scalars: the names of the arguments that are numbers and that the derivative multiplies by.
        only_if: one more condition for plain backward, on the node.
        derivative: our own derivative, used because PyTorch's formula mixes used elements with ignored elements.
        derivative_if: the nodes for which `derivative` is used. None means all nodes.
        fills: how to recognize a node with which the derivative fills in zeros that mean nothing, as for a norm of 0:
            the functions ahead of that node, as in "MaskedFill(Div(Norm))". See the module `fills`.
        mixes: gives the dimensions of a node's tensors along which `derivative` mixes elements. None means all.
    """

    selects: bool | Callable[[Any], bool] = False
    compares: bool = False
    moves: bool | Callable[[Any], bool] = False
    safe_if: Condition = NEVER
    safe_if_saved: Mapping[str, Condition] = field(default_factory=dict)
    scalars: tuple[str, ...] = ()
    only_if: Callable[[Any], bool] | None = None
    derivative: Derivative | None = None
    derivative_if: Callable[[Any], bool] | None = None
    fills: tuple[str, ...] = ()
    mixes: Callable[[Any], Sequence[int]] | None = None

    def may_select(self, node: Any) -> bool:
        """Whether the function selects, as it was called at this node. Zeros that a formula fills in select nothing."""
        if self.selects is False or is_fill(node):
            return False
        return self.selects if isinstance(self.selects, bool) else self.selects(node)

    def __post_init__(self) -> None:
        for condition in (self.safe_if, *self.safe_if_saved.values()):
            if not isinstance(condition, Condition):
                raise TypeError(
                    f"{condition!r} is not a condition; use ignoring.ALWAYS, FINITE, MODERATE, AWAY_FROM_ZERO or NEVER"
                )


UNKNOWN = Function()
"""The record of a function that nobody has recorded."""

FUNCTIONS: dict[str | type, Function] = {}
"""The records. A key is the name of a function's nodes without "Backward0", or the class of a Function in Python."""

RULES: dict[Any, Rule] = {}
"""The rules. A key is an operator, such as `torch.ops.aten.mul`; the rule is for all its overloads."""

RULES_OF_SPARSE: dict[Any, Rule] = {}
"""The rules for a sparse cotangent. Its mask is the mask of the elements that it stores."""


@dataclass(frozen=True, eq=False)
class Transfer:
    """How a mask goes through the derivative of a function, if plain PyTorch runs the derivative.

    Attributes:
        follow: the function that gives the masks. It is called as `follow(node, grad, mask, results)` with a cotangent,
            its mask, and the result of the derivative for each edge. A result is None if nobody needs the mask of its
            edge. `follow` returns a mask, or None, for each edge.
        reads: the attributes of the saved tensors that `follow` reads.
        only_if: a condition on the node. None means all nodes.
        repair: the function that repairs the results if the saved tensors are not safe. It is called as
            `repair(node, grad, mask, results)`, and writes into the results. If there is none, such a derivative is
            interpreted.
        repair_if: the nodes that `repair` can handle. None means all nodes.
        repair_reads: the attributes of the saved tensors that `repair` reads.
    """

    follow: Callable[[Any, torch.Tensor, Mask, Sequence[Any]], Sequence[Mask]]
    reads: tuple[str, ...] = ()
    only_if: Callable[[Any], bool] | None = None
    repair: Callable[[Any, torch.Tensor, torch.Tensor, Sequence[Any]], None] | None = None
    repair_if: Callable[[Any], bool] | None = None
    repair_reads: tuple[str, ...] = ()

    always_runs: ClassVar[bool] = False
    on_cotangents: ClassVar[bool] = False

    @cached_property
    def without_repair(self) -> Transfer:
        """The transfer for a node whose saved tensors are safe."""
        return self if self.repair is None else replace(self, repair=None)

    def after(
        self,
        owner: Any,
        node: Any,
        function: Function,
        arriving: Sequence[Any],
        masks: Sequence[Mask],
        results: Sequence[Any],
        wanted: Sequence[Any],
    ) -> tuple[Sequence[Any], Sequence[Mask]]:
        """The results of a derivative that plain PyTorch has run, and their masks.

        Args:
            owner: the pass.
            node, function: the node, and the record of its function.
            arriving, masks: the cotangents that arrived at the node, and their masks.
            results: the results for the edges of the node.
            wanted: the same results, with None for each edge whose mask is not needed.
        """
        (grad,), (mask,) = arriving, masks
        if self.repair is not None and mask is not None:
            if owner.count is not None:
                owner.count.see(node, masks)
            self.repair(node, grad, mask, results)
        return results, self.follow(node, grad, mask, wanted)

    def may_follow(self, node: Any, trusted: bool) -> bool:
        """True if plain PyTorch can run a node's derivative. `trusted`: the precheck found the node safe."""
        metadata = node._input_metadata[0]
        if metadata.is_nested_tensor or not metadata.dtype.is_floating_point:
            return False
        if not trusted and (self.repair is None or self.repair_if is not None and not self.repair_if(node)):
            return False
        for name in self.reads if trusted else self.reads + self.repair_reads:
            if getattr(getattr(node, name, None), "unpack_hook", node) is not None:
                return False  # a hook would compute the tensor again, or fetch it; before 2.10 there may be one
        return self.only_if is None or self.only_if(node)


TRANSFERS: dict[str, Transfer] = {}
"""How a mask goes through the derivative of a function, by the function's name."""


def transfer(names: str, *, since: str = "2.6", until: str | None = None, **facts: Any) -> Callable[[Any], Any]:
    """Record how a mask goes through the derivatives of some functions; `facts` are the fields of `Transfer`.

    Raises:
        ValueError: if no function has one of these names, or if it has a transfer already.
    """

    def register(follow: Any) -> Any:
        for name in names.split():
            if name in TRANSFERS:
                raise ValueError(f"{name} has a transfer already: {TRANSFERS[name].follow.__name__}")
            if name in NODES:
                TRANSFERS[name] = Transfer(follow, **facts)
            else:
                _refuse_unless_other_release(f"no node is called {name}Backward0", since, until)
        return follow

    return register


def function(
    names: str | type[torch.autograd.Function], *, since: str = "2.6", until: str | None = None, **facts: Any
) -> Any:
    """Make a record of one or more forward functions, so that `ignoring` knows what their backward does.

    `ignoring` follows a backward with or without a record. Without a record, the backward of your
    `torch.autograd.Function` or `torch.library` operator runs on plain tensors, and `ignoring` follows the operators
    that it calls. A record is needed if the function selects, if the gradient is differentiated again, or if clean data
    should run in plain PyTorch. With a record, the backward gets a `Cotangent` in place of each tensor, and each
    operator that it calls is handled by its rule. To make the record, the name is enough.

    Args:
        names: one of three. A name of a PyTorch function: the name of its node without "Backward0", such as "Mul" or
            "LogSoftmax". A name of a custom operator, as in `torch.ops`, such as "mylib::scale". Or a subclass of
            `torch.autograd.Function`. Separate several names by spaces.
        since: a PyTorch release that has nodes with these names. On an older release, a missing name is not an error.
        until: the last PyTorch release that has them, if a newer one has renamed them. On a release newer than that, a
            missing name is not an error.
        facts: fields of `Function`, as keyword arguments.

    Returns:
        The same `names`, so that you can use `function` as a decorator of a class.

    Raises:
        ValueError: if no function has this name, or if a PyTorch function already has a record. A record of your own
            function is replaced.
        TypeError: if a fact is not a field of `Function`, or if `names` is neither a string nor a subclass of
            `torch.autograd.Function`.

    >>> @function
    ... class Double(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return 2 * x
    ...
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         return 2 * gradient
    >>> x = torch.tensor([1.0, 0.0], requires_grad=True)
    >>> torch.where(x > 0, Double.apply(x.log()), torch.zeros(2)).sum().backward()
    >>> x.grad
    tensor([2., nan])
    >>> x.grad = None
    >>> from zero_or_nan import ignoring
    >>> ignoring.backward(torch.where(x > 0, Double.apply(x.log()), torch.zeros(2)).sum())
    >>> x.grad
    tensor([2., 0.])
    """
    record = Function(**facts)
    keys = list(_keys(names, since, until))
    for key in keys:
        if key in FUNCTIONS and isinstance(key, str) and not key.startswith(GENERATED):
            raise ValueError(f"{key} has a record already: {FUNCTIONS[key]}")
    FUNCTIONS.update(dict.fromkeys(keys, record))
    FORMULAS.extend(ast.parse(formula, mode="eval").body for formula in record.fills)
    return names


def _keys(names: str | type, since: str, until: str | None) -> Iterator[str | type]:
    """The keys in `FUNCTIONS` for these functions."""
    if isinstance(names, type) and issubclass(names, torch.autograd.Function):
        yield names
        return
    if not isinstance(names, str):
        raise TypeError(f"{names!r} is neither the name of a function nor a subclass of torch.autograd.Function")
    for name in names.split():
        namespace, found, operator = name.rpartition("::")
        if found:
            packet = getattr(getattr(torch.ops, namespace), operator, None)
            if packet is None:
                raise ValueError(f"there is no operator {name}; define it before its record")
            yield from (f"{GENERATED}{namespace}_{operator}_{overload}" for overload in packet.overloads())
        elif name in NODES or "." in name or name.startswith(GENERATED):  # the latter are PyTorch's own, in Python
            yield name
        else:
            _refuse_unless_other_release(f"no node is called {name}Backward0", since, until)


def record_of(node: Any) -> Function:
    """The record of the forward function whose derivative a node computes."""
    forward = getattr(node, "_forward_cls", None)
    if forward is None:
        return FUNCTIONS.get(function_of(node.name()), UNKNOWN)
    if forward.__module__.startswith("torch."):
        return FUNCTIONS.get(name_in_torch(forward), UNKNOWN)
    return FUNCTIONS.get(forward, UNKNOWN)


def name_in_torch(forward: type) -> str:
    """The key in `FUNCTIONS` for a Function in Python that is PyTorch's own, or that `torch.library` made."""
    name = forward.__name__
    return name if name.startswith(GENERATED) else f"{forward.__module__}.{name}"


def derivative(names: str | type[torch.autograd.Function], **facts: Any) -> Callable[[Derivative], Derivative]:
    """Register a second derivative formula for one or more forward functions, which handles ignored elements.

    Use it for a backward that takes pointers, or that writes into the tensors that it gets. Such a backward continues
    to run on plain tensors. If ignored elements arrive, `ignoring` also calls your formula, as
    `formula(node, cotangents)`. For a `torch.autograd.Function`, `node` is its `ctx`. `cotangents` has one `Cotangent`
    for each output. Write the formula in operators that have rules, and return a tuple with a `Cotangent` or None for
    each input. If an element of the backward's own result is not finite, `ignoring` takes this element from the
    formula's result.

    Args:
        names: the same as for `function`.
        facts: fields of `Function`, as keyword arguments, and `since` and `until`.

    Raises:
        ValueError, TypeError: in the same situations as `function`.

    >>> class Scaled(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x, factor):
    ...         ctx.save_for_backward(factor)
    ...         return x * factor
    ...
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         return torch.from_numpy(gradient.numpy() * ctx.saved_tensors[0].numpy()), None
    >>> @derivative(Scaled)
    ... def scaled(node, cotangents):
    ...     return cotangents[0] * node.saved_tensors[0], None
    >>> from zero_or_nan import ignoring
    >>> x = torch.ones(2, requires_grad=True)
    >>> ignoring.backward(Scaled.apply(x, torch.tensor([2.0, torch.nan]))[:1].sum())
    >>> x.grad
    tensor([2., 0.])
    """

    def register(implementation: Derivative) -> Derivative:
        function(names, derivative=implementation if is_own(implementation) else checked(implementation), **facts)
        return implementation

    return register


def rule(*operators: str, since: str = "2.6", until: str | None = None) -> Callable[[Rule], Rule]:
    """Register a rule for one or more operators. The decorated function is the rule.

    `ignoring` calls the rule as `rule(op, *args, **kwargs)` if at least one of the arguments is a `Cotangent`. `op` is
    the overload that was called. If an in-place overload was called, `op` is the out-of-place one. The rule returns the
    result of `op`, with a `Cotangent` in place of each tensor. Two things must hold for each `Cotangent`:

    - an element that does not count is 0, never NaN or infinite;
    - an element that is finite in plain PyTorch's result has the same bits as there.

    If a rule can't handle a case, it raises `NotFollowed` with a reason. If a rule raises anything else, or returns a
    wrong number of results, or a result of a wrong type or shape, a warning reports a mistake in the rule. In all these
    cases `ignoring` takes plain PyTorch's result.

    Args:
        operators: the names of the operators, as in `torch.ops`: "mylib::scale". A name without a namespace, such as
            "mul", is an operator of aten.
        since: a PyTorch release that has these operators. On an older release, a missing operator is not an error.
        until: the last PyTorch release that has them, if a newer one has renamed them. On a release newer than that, a
            missing operator is not an error.

    Raises:
        ValueError: if there is no operator with this name, if the operator writes into its arguments, or if the library
            already has a rule for it. A rule of your own is replaced.
        TypeError: if an argument is not a string.

    >>> rule("mul")
    Traceback (most recent call last):
    ...
    ValueError: aten::mul has a rule already: mul

    A rule for a custom operator that multiplies element by element:

    >>> from zero_or_nan.ignoring import mask_of, unwrap, zero_ignored
    >>> @torch.library.custom_op("docs::halved", mutates_args=())
    ... def halved(x: torch.Tensor) -> torch.Tensor:
    ...     return x / 2
    >>> @rule("docs::halved")
    ... def halved_by_rule(op, gradient):
    ...     return zero_ignored(op(unwrap(gradient)), mask_of(gradient))
    """
    if not operators or not all(isinstance(operator, str) for operator in operators):
        raise TypeError(f'rule takes names of operators, as in @rule("mylib::scale"), and got {operators}')
    packets = []
    for operator in operators:
        namespace, found, name = operator.rpartition("::")
        packet = getattr(getattr(torch.ops, namespace or "aten"), name, None)
        if packet is None and found:
            raise ValueError(f"there is no operator {operator}; define it before its rule")
        if packet is None:
            _refuse_unless_other_release(f"there is no operator {operator}", since, until)
        elif packet in RULES and is_own(RULES[packet]):
            raise ValueError(f"{namespace or 'aten'}::{name} has a rule already: {RULES[packet].__name__}")
        elif all(getattr(packet, overload)._schema.is_mutable for overload in packet.overloads()):
            raise ValueError(f"{operator} writes into its arguments, which no rule can follow; use ignoring.derivative")
        else:
            packets.append(packet)

    def register(implementation: Rule) -> Rule:
        RULES.update(
            dict.fromkeys(
                packets, implementation if is_own(implementation) else checked(implementation, result_check())
            )
        )
        return implementation

    return register


def is_own(implementation: Any) -> bool:
    """True if a rule or a derivative belongs to the library; False if a user wrote it."""
    return str(implementation.__module__).startswith(__package__)


def _refuse_unless_other_release(complaint: str, since: str, until: str | None) -> None:
    """Raise if this release should have the name."""
    here = _numbers(torch.__version__)
    if _numbers(since) <= here <= (NEWEST if until is None else _numbers(until)):
        raise ValueError(
            f"{complaint} in PyTorch {torch.__version__}; correct the name, or pass since='…' if older releases "
            "lack it, or until='…' if newer ones do"
        )


def _numbers(version: str) -> tuple[int, int]:
    """The major and minor number of a version."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)
