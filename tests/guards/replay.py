"""Show one recorded case, and how the answer of the engine differs from the recorded one.

python -m tests.guards.replay tesla 17
"""

from __future__ import annotations

import sys

from tests.guards.cases import answer_of, corpus, difference, write


def main(language: str, number: int) -> int:
    (case,) = [case for case in corpus(language) if case.number == number]
    print(write([case]))
    found = difference(case, answer_of(case))
    print(found or "The answer is as recorded.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
