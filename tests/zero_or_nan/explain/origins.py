"""What a report says, in short."""

from operator import attrgetter


def telling(*fields):
    """A function that gives these fields of each origin of a report."""
    return lambda report: list(map(attrgetter(*fields), report))


told = telling("kind", "phase", "operator")
