"""Source ids keep their strings when others are dropped."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tocsin.engine.store import SourceIds

COLUMNS = st.lists(st.lists(st.text(max_size=5), max_size=6), max_size=8)


@given(columns=COLUMNS, seed=st.integers(0, 99))
def test_source_ids_are_unchanged_after_others_are_dropped(columns: list[list[str]], seed: int) -> None:
    random = np.random.default_rng(seed)
    names, known = SourceIds(), dict[int, str]()
    for column in columns:
        sliced = pa.array(["before", *column, "after"], pa.string()).slice(1, len(column))
        known.update(zip(names.add(sliced).tolist(), column, strict=True))
        if random.random() < 0.5:
            some = [position for position in known if random.random() < 0.5]
            retained = random.permutation([*some, -1]).astype(np.int64)
            moved = names.retain(retained)
            assert (moved[retained == -1] == -1).all()
            pairs = zip(retained.tolist(), moved.tolist(), strict=True)
            known = {new: known[old] for old, new in pairs if old >= 0}
            assert len(names) == len(known)
        places = random.permutation([*known, -1]).astype(np.int64)
        assert names.strings(places).to_pylist() == [known.get(position) for position in places.tolist()]
