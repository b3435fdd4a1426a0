"""A run in other formats, a file here for each."""

__all__: list[str] = []
