"""Names by place: what is kept keeps its text, wherever it moves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tocsin.engine.store import Names

COLUMNS = st.lists(st.lists(st.text(max_size=5), max_size=6), max_size=8)


@given(columns=COLUMNS, seed=st.integers(0, 99))
def test_names_are_found_again_after_others_were_forgotten(columns: list[list[str]], seed: int) -> None:
    random = np.random.default_rng(seed)
    names, known = Names(), dict[int, str]()
    for column in columns:
        sliced = pa.array(["before", *column, "after"], pa.string()).slice(1, len(column))
        known.update(zip(names.add(sliced).tolist(), column, strict=True))
        if random.random() < 0.5:
            kept = random.permutation([*(place for place in known if random.random() < 0.5), -1]).astype(np.int64)
            moved = names.keep(kept)
            assert (moved[kept == -1] == -1).all()
            pairs = zip(kept.tolist(), moved.tolist(), strict=True)
            known = {new: known[old] for old, new in pairs if old >= 0}
            assert len(names) == len(known)
        places = random.permutation([*known, -1]).astype(np.int64)
        assert names.texts(places).to_pylist() == [known.get(place) for place in places.tolist()]
