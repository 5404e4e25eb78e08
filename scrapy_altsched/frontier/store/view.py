"""A store looked into from outside, also while a crawl is using it.

RocksDB writes files of its own even into a store that it only reads: it is given a temporary
directory of links to the store's files.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

from ...errors import StoreDamagedError
from .database import open_up_to_damage
from .rocksdb import READ_ONLY
from .rows import Rows

#: A crawl deletes files when it has merged them: seconds for which to look for a whole set.
_PATIENCE = 10.0


class View(Rows, AbstractContextManager["View"]):
    """A store as it is now, to be read only; the end of a ``with`` statement closes it.

    :ivar damage: what is wrong with the store's log, if it can be read up to that only.
    :raises StoreError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        deadline = time.monotonic() + _PATIENCE
        while True:
            self._links = tempfile.TemporaryDirectory(prefix="altsched-view-")
            try:
                sizes = _sizes_of(path)
                link_files(path, Path(self._links.name))
                self._open(Path(self._links.name))
                return
            except StoreDamagedError:
                self.close()
                if sizes == _sizes_of(path) or time.monotonic() >= deadline:
                    raise
            except BaseException:
                self.close()
                raise

    def _open(self, links: Path) -> None:
        self.damage = open_up_to_damage(partial(self.database.open, links, READ_ONLY))

    def close(self) -> None:
        with self._links:
            self.database.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def link_files(store: Path, directory: Path) -> None:
    """Make *directory* look as *store* does."""
    for name in files_of(store):
        (directory / name).symlink_to(store.absolute() / name)


def _sizes_of(store: Path) -> dict[str, int]:
    """Bytes of each file; one may come and go meanwhile."""
    sizes = {}
    for name in files_of(store):
        with suppress(OSError):
            sizes[name] = (store / name).stat().st_size
    return sizes


def files_of(store: Path) -> set[str]:
    """The names of the files that a store consists of; without those that rocksdict rewrites."""
    return {
        path.name
        for path in store.iterdir()
        if path.name not in ("LOCK", "rocksdict-config.json") and not path.name.startswith("LOG")
    }
