"""Every error that this package raises.

A message says what happened, to which setting, file or URL, and what to do.
"""

from __future__ import annotations


class AltschedError(Exception):
    """Base class of all errors of this package."""


class ConfigError(AltschedError, ValueError):
    """A setting has an invalid value, or needs a package that is missing."""


class UnsupportedScrapyError(AltschedError):
    """The installed Scrapy lacks something that crash safety depends on."""


class JobdirError(AltschedError):
    """The job directory cannot be used as it is."""


class JobdirLockedError(JobdirError):
    """A running crawl holds the job directory."""


class UnsupportedSystemError(JobdirError):
    """The operating system lacks the file locks that a job directory needs."""


class JobdirMismatchError(JobdirError):
    """The job directory was written by a newer format or by another spider."""


class JobdirLostError(JobdirError):
    """The job directory was deleted or replaced while the crawl was running."""


class SpoolError(JobdirError):
    """Actions that wait for a crawl cannot be read or written."""


class InvalidActionError(SpoolError):
    """A file in the spool is not a valid action, or belongs to another user; it is skipped."""


class NotAppliedError(AltschedError):
    """What was asked of a crawl could not be done, or not all of it."""


class FeedLockedError(AltschedError):
    """Another crawl writes to the file of a feed."""


class StoreError(AltschedError):
    """A read or a write of the store failed."""


class StoreStalledError(StoreError):
    """The store has too much to flush and asks for the write to come later."""


class StoreDamagedError(StoreError):
    """Files of the store are damaged or missing; ``scrapy altsched check`` says what is left."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        #: What is damaged, as a sentence, without the remedy.
        self.problem = problem


class SharedError(AltschedError):
    """The server of a shared crawl cannot be reached, or is not ready; that may pass by itself."""


class FrontierFailedError(AltschedError):
    """A thread of the crawl has died of an error that it did not expect, which is the cause."""

    def __init__(self, what: str, cause: BaseException) -> None:
        super().__init__(f"The thread that {what} has died of {type(cause).__name__}: {cause}.")
        self.__cause__ = cause


class CommitPostponedError(AltschedError):
    """A handler of ``frontier_committing`` could not flush its component's data."""


class CodecError(AltschedError, ValueError):
    """A request cannot be turned into bytes, or bytes not into a request."""


class InputError(AltschedError):
    """A file given to a command cannot be read or written, or its content is invalid."""


class ForkedError(AltschedError):
    """A frontier was used from a process that was forked from its owner."""
