"""One page about one run, or about several side by side: a file that needs nothing beside it."""

__all__: list[str] = []
