"""Generate half a day of a log with three attacks: `python generate.py [lines] [seed]`.

It writes auth.log, in the format of sshd and sudo, and events.jsonl. `events` reads this format, also from a real log.
"""

import ipaddress
import json
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

START = datetime(2026, 7, 1, 8, tzinfo=UTC)
USERS = ["ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal"]
_STAMP = r"(?P<ts>\S+) \S+ "
_LINES = {
    "Failed": re.compile(_STAMP + r"sshd\[\d+\]: Failed password for (?:invalid user )?(?P<user>\S+) from (?P<ip>\S+)"),
    "Accepted": re.compile(_STAMP + r"sshd\[\d+\]: Accepted \w+ for (?P<user>\S+) from (?P<ip>\S+)"),
    "Sudo": re.compile(_STAMP + r"sudo: +(?P<user>\S+) : .*USER=root"),
}


def make(lines: int = 2_000, seed: int = 1) -> list[str]:
    """Return log lines of users who log in and mistype passwords, and of three attacks, ordered by time."""
    random = np.random.default_rng(seed)
    said: list[tuple[float, str]] = []

    def failed(second: float, user: str, ip: str) -> None:
        said.append((second, f"sshd[{random.integers(999, 9999)}]: Failed password for {user} from {ip} port 22 ssh2"))

    def accepted(second: float, user: str, ip: str) -> None:
        said.append(
            (second, f"sshd[{random.integers(999, 9999)}]: Accepted password for {user} from {ip} port 22 ssh2")
        )

    def sudo(second: float, user: str) -> None:
        said.append((second, f"sudo:   {user} : TTY=pts/0 ; PWD=/home/{user} ; USER=root ; COMMAND=/bin/sh"))

    for second in random.uniform(0, 43_200, lines // 2):
        user = str(random.choice(USERS))
        ip = f"10.0.0.{10 + USERS.index(user)}"
        if random.random() < 0.2:
            failed(second - 5, user, ip)
        accepted(second, user, ip)
        if random.random() < 0.1:
            sudo(second + 20, user)
    for start, ip in ((9_000.0, "203.0.113.7"), (30_000.0, "198.51.100.23")):  # guesses one user's password
        for second in range(40):
            failed(start + 2 * second, "eve", ip)
        accepted(start + 85, "eve", ip)
    sudo(30_000.0 + 130, "eve")
    for second, user in enumerate(USERS):  # sprays one password, from many addresses of one net
        failed(20_000.0 + 4 * second, user, f"192.0.2.{random.integers(1, 250)}")
    return [f"{(START + timedelta(seconds=second)).isoformat()} web1 {text}" for second, text in sorted(said)]


def events(log: Iterable[str]) -> Iterator[dict]:
    """Return the events of a log; other lines are ignored."""
    for line in log:
        for type, expression in _LINES.items():
            if found := expression.match(line):
                event = {"type": type, **found.groupdict()}
                if "ip" in event:
                    event["external"] = ipaddress.ip_address(event["ip"]) not in ipaddress.ip_network("10.0.0.0/8")
                yield event


if __name__ == "__main__":
    log = make(*map(int, sys.argv[1:3]))
    Path("auth.log").write_text("\n".join(log) + "\n", encoding="utf-8")
    read = list(events(log))
    Path("events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in read), encoding="utf-8")
    print(f"{len(log):,} lines in auth.log, {len(read):,} events in events.jsonl")
