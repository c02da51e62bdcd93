"""Generate a day of card payments with some thefts: `python generate.py [payments] [seed]` writes events.csv.

The column `theft` has the kind of each theft (`Tried`, `Apart` or `Taken`), to compare the matches with. There are also
honest cases that look similar: expensive payments after one small one, and holders who confirm a new address.
"""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv

START = np.datetime64("2026-07-01T00:00:00", "us")
COUNTRIES = ["CH", "DE", "FR", "IT", "AT"]


def make(payments: int = 20_000, seed: int = 1) -> pa.Table:
    """Return `payments` honest payments and a few thefts, ordered by time."""
    random = np.random.default_rng(seed)
    cards = max(10, payments // 10)
    home = random.integers(0, len(COUNTRIES), cards)
    rows = []

    def add(second: float, type: str, card: int, amount=None, country=None, online=None, theft=None) -> None:
        rows.append((round(second * 1e6), type, f"c{card}", amount, country, online, theft))

    for second, card in zip(random.uniform(0, 86_400, payments), random.integers(0, cards, payments), strict=True):
        amount = round(float(np.clip(random.lognormal(3.2, 1.1), 0.5, 2_000)), 2)
        add(second, "Payment", card, amount, COUNTRIES[home[card]], bool(random.random() < 0.4))
    for number, card in enumerate(random.choice(cards, max(6, payments // 1_000), replace=False)):
        second, away = float(random.uniform(3_600, 80_000)), COUNTRIES[home[card] - 1]
        if number % 3 == 0:
            for after in np.sort(random.uniform(0, 500, 4)):
                add(second + after, "Payment", card, round(float(random.uniform(0.5, 1.9)), 2), away, True, "Tried")
            dear = round(float(random.uniform(300, 1_900)), 2)
            add(second + 600, "Payment", card, dear, away, True, "Tried")
        elif number % 3 == 1:
            add(second, "Payment", card, 40.0, COUNTRIES[home[card]], False)
            add(second + float(random.uniform(60, 1_500)), "Payment", card, 90.0, away, False, "Apart")
        else:
            add(second, "Address", card, theft="Taken")
            add(second + float(random.uniform(300, 7_000)), "NewCard", card, theft="Taken")
    for card in random.choice(cards, max(4, payments // 1_000), replace=False):  # the honest ones
        second = float(random.uniform(3_600, 80_000))
        add(second, "Address", card)
        add(second + 60, "Confirmed", card)
        add(second + float(random.uniform(300, 7_000)), "NewCard", card)

    rows.sort()
    names = ("ts", "type", "card", "amount", "country", "online", "theft")
    table = pa.table({name: [row[number] for row in rows] for number, name in enumerate(names)})
    return table.set_column(0, "ts", pa.array(table["ts"].to_numpy() + START))


if __name__ == "__main__":
    table = make(*map(int, sys.argv[1:3]))
    pyarrow.csv.write_csv(table, "events.csv")
    print(f"{table.num_rows:,} events in events.csv")
