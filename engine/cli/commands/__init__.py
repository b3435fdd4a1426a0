"""The commands of `tachograph`, a file each: `add_arguments(parser)` and `run(arguments)`, which returns the status."""

__all__: list[str] = []
