"""Measure how many events or matches there were per second in the last seconds, for each type or rule."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

SPAN_S = 10


class RateCounter:
    """The rates of named counters, computed from samples of the counters."""

    def __init__(self, span_s: int = SPAN_S) -> None:
        self._samples: deque[tuple[float, Counter[str]]] = deque(maxlen=span_s + 1)

    def sample(self, now_s: float, counts: Mapping[str, int]) -> None:
        """Store a sample of the counters, unless the last sample is less than a second old."""
        if not self._samples or now_s - self._samples[-1][0] >= 1.0:
            self._samples.append((now_s, Counter(counts)))

    def per_s(self) -> dict[str, float]:
        """Return the increase per second of each counter over the stored samples.

        >>> rates = RateCounter()
        >>> rates.sample(0.0, {"a": 10}), rates.sample(2.0, {"a": 16})
        (None, None)
        >>> rates.per_s()
        {'a': 3.0}
        """
        samples = list(self._samples)
        if len(samples) < 2:
            return {}
        (start_s, before), (end_s, after) = samples[0], samples[-1]
        return {name: (count - before[name]) / (end_s - start_s) for name, count in after.items()}
