"""What does a processor ask of slaves, and what does it still wait for? (T-Rex, 3.5)

When events are released, those of masters ask for what can meet them (`mastery.requests`). Nothing is decided before
every Awaken was answered by Done; the time that took is a stall. What is pushed anyhow is not asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tocsin.overlay import mastery
from tocsin.overlay.deployment import Item, Key, Mastery
from tocsin.overlay.evaluation import Types
from tocsin.overlay.messages import Awaken, DeployRule, Done
from tocsin.overlay.rows import Rows
from tocsin.overlay.timing import BEGINNING, Array, Timing
from tocsin.plans.splitting import Partial


@dataclass
class Asking:
    """The asking side of a membership."""

    awakened: dict[tuple[Key, str, Partial], tuple[int, int]] = field(default_factory=dict)
    """For each use of a slave: up to which master's event, and up to which time, it was asked."""
    waiting: dict[tuple[str, Partial], int] = field(default_factory=dict)
    """The Awaken that each child has still to answer."""
    count: int = 0
    stalls: list[tuple[Array, Array]] = field(default_factory=list)

    def ask(
        self,
        tree: str,
        items: Iterable[Item],
        masters: Mapping[Key, Mastery],
        sent: Mapping[str, DeployRule],
        history: Rows,
        types: Types,
        upto: int,
        opened: int,
        timing: Timing,
    ) -> list[tuple[str, Awaken]]:
        """What masters' events before `opened` ask for that was not asked for; they have been decided up to `upto`."""
        found: list[tuple[str, Awaken]] = []
        for item in items:
            master = masters.get(item.key)
            for use in master.pulled if master is not None else ():
                assert master is not None
                key = (item.key, use.child, use.partial)
                if any(request.partial == use.partial and request.pushed for request in sent[use.child].asked):
                    self.awakened.pop(key, None)
                    continue
                since, covered = self.awakened.get(key, (upto - item.horizon_us, BEGINNING))
                blocks_us = item.key.blocks_us if isinstance(item.key, Partial) else 0
                plea = mastery.requests(item.shape, master.node, use, history, types, since, covered, blocks_us)
                self.awakened[key] = (opened, plea.covered)
                if plea.requests:
                    self.count += 1
                    self.waiting[use.child, use.partial] = self.count
                    at = timing.at(plea.ts)
                    found.append((use.child, Awaken(tree, use.partial, self.count, plea.requests, plea.ts, at)))
        return found

    def answered(self, sender: str, message: Done) -> None:
        """A child has sent all that it had."""
        if self.waiting.get((sender, message.partial)) == message.number:
            del self.waiting[sender, message.partial]
            self.stalls.append((message.ts, message.at))

    def stalled(self, timing: Timing) -> Timing:
        """The timing with what had to be waited for."""
        for ts, at in self.stalls:
            timing = timing.stalled(ts, at)
        self.stalls = []
        return timing

    def again(self, changed: Iterable[Key]) -> None:
        """The masters of some items have changed: everything is asked anew."""
        keys = set(changed)
        self.awakened = {key: value for key, value in self.awakened.items() if key[0] not in keys}
