"""Where a job's feed files are after its directory was moved or copied together with them."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path


def follow(name: str, before: Path | None, now: Path | None, written: Collection[str]) -> str:
    """The path of a file as it is now, or *name* if it has stayed where it was.

    It is looked for in the same place, as seen from the job directory.

    :param name: its absolute path, as the job noted it; or the URI of a feed elsewhere.
    :param before: the job directory, absolute, when that was noted; ``None``: it is not known.
    :param now: the job directory, absolute.
    :param written: the files that this run writes to.
    """
    if before is None or now is None or before == now or not Path(name).is_absolute():
        return name
    moved = os.path.normpath(now / os.path.relpath(name, before))
    if name in written:
        return name
    # Two of three: a job that was copied alone still has the file that it had, and a run may
    # write to another one by chance.
    signs = (moved in written, _is_gone(name), not _is_gone(moved))
    return moved if sum(signs) >= 2 else name


def _is_gone(path: str) -> bool:
    return not os.path.lexists(path)
