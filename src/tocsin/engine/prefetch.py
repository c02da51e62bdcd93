"""Process the chunks of a batch ahead of time, on another core.

The host of the detector supplies a `Prefetch`, which runs the work. The default, `inline`, runs it on the calling
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

PREFETCH_MAX = 2
"""The largest number of chunks that are processed ahead."""

P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class PrefetchedResult(Protocol[T_co]):
    """The result of some work, such as a `concurrent.futures.Future`."""

    def done(self) -> bool:
        """Return whether the work is finished or cancelled."""
        ...

    def cancel(self) -> bool:
        """Cancel the work unless it has started, and return whether it was cancelled."""
        ...

    def result(self) -> T_co:
        """Wait for the result and return it."""
        ...


class Prefetch(Protocol):
    """Starts a function as soon as all functions that were started earlier are done, and returns its future result."""

    def __call__(self, work: Callable[[], T], /) -> PrefetchedResult[T]: ...


@dataclass(frozen=True, slots=True)
class _Inline(Generic[T]):
    result: Callable[[], T]

    def done(self) -> bool:
        return True

    def cancel(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    value: T

    def done(self) -> bool:
        return True

    def cancel(self) -> bool:
        return False

    def result(self) -> T:
        return self.value


def inline(work: Callable[[], T]) -> PrefetchedResult[T]:
    """Return a result that runs `work` when it is requested, on the calling thread."""
    return _Inline(work)


class ChunkFunction(Protocol[P_contra, T_co]):
    """A function of one chunk. If `background`, the call may run concurrently with a call that is not in background."""

    def __call__(self, chunk: P_contra, /, *, background: bool = False) -> T_co: ...


def map_chunks(work: ChunkFunction[P, T], chunks: Sequence[P], prefetch: Prefetch) -> Iterator[T]:
    """Yield the result of `work` for each chunk, in order.

    While the worker of `prefetch` is busy with the current chunk, the calling thread processes the next chunk.
    """
    results: dict[int, PrefetchedResult[T]] = {}
    for number in range(len(chunks)):
        for index in range(number, min(number + PREFETCH_MAX + 1, len(chunks))):
            if index not in results:
                results[index] = prefetch(partial(work, chunks[index], background=True))
        next_result = results.get(number + 1)
        if next_result is not None and not results[number].done() and next_result.cancel():
            results[number + 1] = _Done(work(chunks[number + 1]))
        yield results.pop(number).result()
