"""The points and cells of regions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.language.mcep.ast import Circle, Polygon, Rectangle, Space
from tocsin.plans.moving import DEGREE_M, Grid, Region, coordinates_of, distance_m

L_SHAPE = Polygon(((0.0, 0.0), (20.0, 0.0), (20.0, 10.0), (10.0, 10.0), (10.0, 20.0), (0.0, 20.0)))


@pytest.mark.parametrize(
    ("shape", "inside", "outside"),
    [
        (Rectangle(10, 4), [(0, 0), (5, 2), (-5, -2), (5, 0)], [(5.01, 0), (0, 2.01)]),
        (Circle(5), [(0, 0), (3, 4), (0, -5)], [(3.01, 4), (3.6, 3.6)]),
        (L_SHAPE, [(5, 15), (15, 5), (0, 0), (10, 15), (20, 10), (10, 10)], [(15, 15), (-0.1, 5), (10.1, 10.1)]),
    ],
)
def test_a_region_includes_its_border(shape, inside, outside) -> None:
    region = Region(shape, (100, 200))
    assert all(region.contains((100 + x, 200 + y)) for x, y in inside)
    assert not any(region.contains((100 + x, 200 + y)) for x, y in outside)


def test_distances_on_the_earth() -> None:
    assert distance_m((0, 0), (0, 1), Space.WGS84) == pytest.approx(DEGREE_M)
    assert distance_m((0, 60), (1, 60), Space.WGS84) == pytest.approx(DEGREE_M / 2, rel=1e-4)
    assert distance_m((179.9, 0), (-179.9, 0), Space.WGS84) == pytest.approx(0.2 * DEGREE_M)


def test_a_rectangle_on_the_earth_is_in_metres() -> None:
    region = Region(Rectangle(1000, 1000), (9.18, 48.78), Space.WGS84)
    north, east = 500 / DEGREE_M, 500 / DEGREE_M / math.cos(math.radians(48.78))
    assert region.contains((9.18 + east * 0.999, 48.78 + north * 0.999))
    assert not region.contains((9.18 + east * 1.001, 48.78))
    assert not region.contains((9.18, 48.78 + north * 1.001))


@pytest.mark.parametrize(("far_m", "error_m"), [(500, 0.01), (10_000, 4.0)])
def test_the_error_of_the_plane_is_as_documented(far_m: float, error_m: float) -> None:
    region = Region(Circle(1), (9.0, 50.0), Space.WGS84)
    for number in range(72):
        turn = math.tau * number / 72
        east = far_m * math.cos(turn) / DEGREE_M / math.cos(math.radians(50))
        place = (9.0 + east, 50.0 + far_m * math.sin(turn) / DEGREE_M)
        assert math.hypot(*region.offset(place)) == pytest.approx(
            distance_m(region.centre, place, Space.WGS84), abs=error_m
        )


def test_a_region_across_the_date_line() -> None:
    region = Region(Rectangle(40_000, 40_000), (179.95, 10), Space.WGS84)
    assert region.contains((-179.95, 10))
    assert not region.contains((-179.0, 10))
    assert len(region.boxes) == 2


def test_coordinates_of_events() -> None:
    assert coordinates_of({"x": 1, "y": 2.5}, Space.PLANE) == (1.0, 2.5)
    assert coordinates_of({"x": 1}, Space.PLANE) is None
    assert coordinates_of({"x": True, "y": 1}, Space.PLANE) is None
    assert coordinates_of({"x": "1", "y": 1}, Space.PLANE) is None
    assert coordinates_of({"lon": 9.0, "lat": 91.0}, Space.WGS84) is None
    assert coordinates_of({"lon": 9.0, "lat": 48.0}, Space.WGS84) == (9.0, 48.0)


_SHAPES = st.sampled_from([Rectangle(30, 10), Circle(17), L_SHAPE, Rectangle(250, 3)])
_PLACES = st.tuples(st.integers(-50, 150), st.integers(-50, 150))


@given(_SHAPES, _PLACES, _PLACES, st.integers(1, 6), st.integers(1, 6))
def test_a_point_of_a_region_is_in_one_of_its_cells_and_boxes(shape, centre, place, columns, rows) -> None:
    grid, region = Grid((0, 0, 100, 100), columns, rows), Region(shape, centre)
    if region.contains(place):
        assert grid.cell(place) in set(grid.cells(region))
        assert any(w <= place[0] <= e and s <= place[1] <= n for w, s, e, n in region.boxes)


@given(
    _SHAPES,
    st.tuples(st.floats(-180, 180), st.floats(-89, 89)),
    st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
    st.sampled_from([1, 30, 1000]),
)
def test_boxes_on_the_earth_cover_the_region(shape, centre, offset, times) -> None:
    if isinstance(shape, Circle):
        shape = Circle(shape.radius_m * times)
    region = Region(shape, centre, Space.WGS84)
    reach = 300 * (times if isinstance(shape, Circle) else 1) / DEGREE_M
    lon = centre[0] + offset[0] * reach / max(0.01, math.cos(math.radians(centre[1])))
    place = ((lon + 180) % 360 - 180, max(-90.0, min(90.0, centre[1] + offset[1] * reach)))
    if region.contains(place):
        slack = 1e-9
        assert any(w - slack <= place[0] <= e + slack and s <= place[1] <= n for w, s, e, n in region.boxes)
