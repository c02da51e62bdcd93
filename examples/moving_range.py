"""Simulate a car that requests the accidents around it while it drives.

    python examples/moving_range.py [picture.png] [--sumo]

The town has 160 simulated cars on streets of 600 m × 600 m; with --sumo, the cars are a sample by SUMO (examples/data).
The query requests accidents (Fig. 1 (b) of the paper) within 150 m to each side, up to a minute old, and moves every
5 s. The picture shows the route of the car, every third range, and the delivered accidents in the colour of their
range.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tocsin.language.mcep.ast import Space
from tocsin.language.mcep.text import parse, print_interest
from tocsin.overlay.mobility.consumer import Delivery
from tocsin.plans.moving import Grid, Region
from tocsin.simulation.car_traces import CALM_RULES, RULES, Trace, fcd_trace, street_trace
from tocsin.simulation.city import City, Simulation

SAMPLE = Path(__file__).parent / "data" / "sumo_sample.csv"
INTEREST = """
interest  Accidents
of        Accident
around    Position(car="{car}")
range     rectangle 300 m by 300 m
lifetime  60 s
update    every 5 s
"""


def main(arguments: list[str]) -> None:
    sumo = "--sumo" in arguments
    pictures = [argument for argument in arguments if not argument.startswith("--")]
    trace = fcd_trace(SAMPLE) if sumo else street_trace(160, 120, 7, 600.0, 600.0, accident_every_s=8.0)
    car = max(trace.ways, key=lambda name: (len(trace.ways[name]), name))
    program = parse((CALM_RULES if sumo else RULES) + INTEREST.format(car=car))
    (interest,) = program.interests
    print(print_interest(interest))
    city = City(Grid((0.0, 0.0, trace.width_m, trace.height_m), 6, 6), 2, 2, history_us=120_000_000)
    simulation = Simulation(city, [interest], {type.name: type for type in program.types}, Space.PLANE)
    delivered = simulation.run([*trace.events, *trace.positions(car)])[interest.name]
    for one in delivered:
        if one.match is None:
            print(f"--- range {one.number}, from {(one.start or 0) / 1e6:.0f} s")
        else:
            attributes = one.match.attributes
            print(f"    accident at {one.match.ts / 1e6:.1f} s, x={attributes['x']}, y={attributes['y']}")
    traffic = simulation.traffic
    print(f"{traffic.streamed} events streamed, {traffic.control} control messages, {traffic.delivered} delivered")
    for path in pictures:
        draw(trace, car, interest.shape, delivered, Path(path))


def draw(trace: Trace, car: str, shape: object, delivered: list[Delivery], path: Path) -> None:
    """Draw the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 7), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    way = trace.ways[car]
    axes.scatter(
        [event.attributes["x"] for event in trace.events], [event.attributes["y"] for event in trace.events],
        s=1, color="lightgrey", label="events",
    )  # fmt: skip
    axes.plot([at[0] for _, at in way], [at[1] for _, at in way], color="black", linewidth=1.5, label="the car's way")
    places = dict(way)
    begun = [one for one in delivered if one.match is None]
    colours = {one.number: f"C{number % 10}" for number, one in enumerate(begun)}
    for one in begun[::3]:
        centre = places[(one.start or 0) // 1_000_000]
        outline = Region(shape, centre).outline  # type: ignore[arg-type]
        xs, ys = zip(*outline, outline[0], strict=False)
        axes.plot(xs, ys, color=colours[one.number], linewidth=1)
        axes.plot(*centre, "o", color=colours[one.number], markersize=4)
        label = f"{(one.start or 0) // 1_000_000} s"
        axes.annotate(label, centre, (4, 4), textcoords="offset points", color=colours[one.number], fontsize=8)
        found = [other.match for other in delivered if other.number == one.number and other.match is not None]
        axes.scatter(
            [match.attributes["x"] for match in found], [match.attributes["y"] for match in found],
            marker="x", s=60, color=colours[one.number],
        )  # fmt: skip
    axes.set(aspect="equal", xlabel="m", ylabel="m", title="A range that moves, and the accidents in it (×)")
    axes.legend(frameon=False, loc="lower right", fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    main(sys.argv[1:])
