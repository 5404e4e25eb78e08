"""Scrapy's pipelines for files and images, with a local store that a kill leaves whole."""

from __future__ import annotations

from hashlib import blake2b
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from scrapy.pipelines import files, images
from scrapy.pipelines.files import FilesStoreProtocol, FSFilesStore, StatInfo
from scrapy.pipelines.media import MediaPipeline

from ..worker import PARAMETER

if TYPE_CHECKING:
    from scrapy import Request
    from twisted.internet.defer import Deferred

    SpiderInfo = MediaPipeline.SpiderInfo


class LocalFilesStore(FSFilesStore):
    """Writes each file under another name first, and renames it when it is whole.

    A kill in between leaves a file ``.<digest>.partial``, which the next run of the job writes
    over, as the item comes again.
    """

    def persist_file(
        self, path: str | PathLike[str], buf: BytesIO, info: SpiderInfo, *more: Any, **named: Any
    ) -> None:
        folder, _, name = str(path).rpartition("/")
        # Another worker may store the same file meanwhile.
        writer = f"{getattr(info.spider, PARAMETER, '')}/{name}".encode()
        partial = f"{folder}/.{blake2b(writer, digest_size=8).hexdigest()}.partial".lstrip("/")
        super().persist_file(partial, buf, info, *more, **named)
        self._locate(partial).replace(self._locate(path))

    def stat_file(self, path: str | PathLike[str], info: SpiderInfo) -> StatInfo:
        """As Scrapy's; nothing of an empty file, which a kill cut short before this was in use."""
        return super().stat_file(path, info) if self.has(path) else {}

    def has(self, path: str | PathLike[str]) -> bool:
        place = self._locate(path)
        return place.is_file() and place.stat().st_size > 0

    def _locate(self, path: str | PathLike[str]) -> Path:
        return Path(self.basedir, *str(path).split("/"))


_Schemes = dict[str, type[FilesStoreProtocol]]
_LOCAL: _Schemes = dict.fromkeys(("", "file"), LocalFilesStore)


class FilesPipeline(files.FilesPipeline):
    """Scrapy's, for ``ITEM_PIPELINES``; of the same name, which Scrapy derives settings from."""

    STORE_SCHEMES: ClassVar[_Schemes] = {**files.FilesPipeline.STORE_SCHEMES, **_LOCAL}


class ImagesPipeline(images.ImagesPipeline):
    """As :class:`FilesPipeline`."""

    STORE_SCHEMES: ClassVar[_Schemes] = {**images.ImagesPipeline.STORE_SCHEMES, **_LOCAL}

    def media_to_download(
        self, request: Request, info: SpiderInfo, *, item: Any = None
    ) -> Deferred[Any] | None:
        """Have an image downloaded also if a thumbnail, stored after it, is missing: ``None``."""
        store = self.store
        if isinstance(store, LocalFilesStore) and not all(
            store.has(self.thumb_path(request, name, info=info, item=item)) for name in self.thumbs
        ):
            return None
        return super().media_to_download(request, info, item=item)
