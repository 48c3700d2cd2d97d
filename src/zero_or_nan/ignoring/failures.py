"""The exceptions of rules: for a case that a rule can't handle, and for a mistake in a user's rule."""


class NotFollowed(Exception):
    """A rule raises this exception if it can't handle a case. Give the reason in a few words.

    A warning shows the reason to the user. From that operator on, the gradient is plain PyTorch's.
    """


class RuleFailed(Exception):
    """A mistake in a rule or a derivative that a user wrote."""
