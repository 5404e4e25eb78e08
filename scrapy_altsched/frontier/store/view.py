"""A store looked into from outside, also while a crawl is using it."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from pathlib import Path

from ...errors import StoreError
from .rows import Rows


class View(Rows, AbstractContextManager["View"]):
    """A store as it is now, to be read only; the end of a ``with`` statement closes it.

    :ivar damage: what is wrong with the store's log, if it can be read up to that only.
    :raises StoreError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.damage = self.database.open_view()
        with suppress(StoreError):  # reading what is damaged tells of it
            self.read_key_form()

    def close(self) -> None:
        self.database.close()

    def __exit__(self, *_: object) -> None:
        self.close()
