"""Files of a trainer's model, beside the snapshots of its run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tachograph.drivers import Driver


class Models:
    """Saves and loads a trainer's model."""

    # what the other parts of a trainer bring
    driver: Driver | None
    _hear_inside: Callable[..., None]

    def save_model(self, target: Any) -> None:
        """Write the model's weights, to be read with `load_model` or plain `torch.load(weights_only=True)`.

        Args:
            target: a path, written whole or not at all; or an open binary file.
        """
        self._hear_inside("on_save_model")
        self.driver.save_model(target)  # type: ignore[union-attr]

    def load_model(self, source: Any) -> None:
        """Load weights that `save_model` wrote.

        Args:
            source: a path or an open binary file.

        Raises:
            FileNotFoundError: there is nothing at that path.
            RestoreFault: it doesn't fit the model; nothing was changed.
        """
        self._hear_inside("on_load_model")
        self.driver.load_model(source)  # type: ignore[union-attr]
