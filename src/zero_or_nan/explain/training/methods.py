"""Explains a method of one object when it fails. The callbacks put such a method into a trainer.

A trainer runs the loop, so the user has no step to decorate. The trainer's classes stay unchanged, because only the
object that trains gets the new method. So this also works for a subclass's own method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import distributed, nn

from ...ignoring.inside import tree_map
from ..program.tensors import in_several_processes
from ..report.report import NotFiniteError
from .before import Before
from .failure import on_failure

_OWN = frozenset(vars(nn.Module()))
"""The attributes that every module has. The search itself restores them."""


class ExplainedMethod:
    """Replaces a method of an object with the same method, decorated with `on_failure`, until `put_back` restores it.

    Args:
        owner: the object.
        name: the name of a method that runs forward and backward.
        model: the model that is trained.
        search: `explain.probe`, if the first call has to search the loss of its batch and print the report.
    """

    def __init__(self, owner: Any, name: str, model: nn.Module, search: Callable[..., Any] | None) -> None:
        put_back(owner, name)  # an exception elsewhere may have ended the training before
        self.owner, self.name = owner, name
        self.model: Any = model
        # Each process may run the model a different number of times, so models that synchronize would hang.
        is_alone = not in_several_processes() or distributed.get_world_size() == 1
        self.search = search if is_alone else None
        self.is_own = name in vars(owner)
        self.method = getattr(owner, name)
        self.explained = on_failure(self._run, model=model)
        self.counts: Any = None
        self.result: Any = None
        setattr(owner, name, self)

    def keep(self) -> Any:
        """Keep the owner's counters, before a step."""
        return vars(self.owner).copy()

    def restore(self, counts: Any) -> None:
        """Restore the owner's counters from before a step, for the second run and after it."""
        vars(self.owner).update(counts)

    def loss_of(self, result: Any) -> Any:
        """The loss in what the method returns. The rest of the result is not checked."""
        return result

    def notes(self, loss: Any) -> Iterator[str]:
        """Notes for the report about the training run, after a step with this loss has failed."""
        raise NotImplementedError

    def loss_fn(self, *args: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The loss of a batch as a function, and its inputs, from the arguments of the method."""
        raise NotImplementedError

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While entered, everything that a loss writes into lists and dicts of the owner and the model goes to copies.

        Afterwards, the random numbers continue unchanged, even if the trainer draws some while it prepares the batch.
        """
        before = Before(None, ())
        kept = [(vars(thing), vars(thing).copy()) for thing in (self.owner, self.model)]
        for here, items in kept:
            copies = {name: tree_map(lambda leaf: leaf, value) for name, value in items.items() if name not in _OWN}
            here.update({name: copy for name, copy in copies.items() if isinstance(copy, (list, dict))})
        try:
            yield
        finally:
            for here, items in kept:
                here.clear()
                here.update(items)
            before.put_back()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.counts = self.keep()
        try:
            if self.search is not None:
                search, self.search = self.search, None
                with self.aside():
                    loss_fn, inputs = self.loss_fn(*args)
                    print(f"explain.probe searched the loss of the first batch: {search(loss_fn, *inputs)}")
            self.explained(*args, **kwargs)
            return self.result
        except BaseException as error:
            if isinstance(error, NotFiniteError):
                self.restore(self.counts)
                for note in self.notes(self.loss_of(self.result)):
                    error.report.note(note)
            put_back(self.owner, self.name)
            raise
        finally:
            self.counts = self.result = None

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self.restore(self.counts)
        result = self.method(*args, **kwargs)
        if self.result is None:  # a step that fails runs again, also with a remedy in it
            self.result = result
        return self.loss_of(result)


def put_back(owner: Any, name: str) -> None:
    """Restore the object's own method, if it was replaced by an explained method."""
    explained = vars(owner).get(name)
    if isinstance(explained, ExplainedMethod):
        delattr(owner, name)
        if explained.is_own:
            setattr(owner, name, explained.method)
