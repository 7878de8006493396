"""Tables and plots show what segments contain. What workers wrote into them is no HTML."""

import numpy as np
import pytest

import rollway
from rollway.dashboard import plots, tables
from rollway.dashboard.history import History, Series
from rollway.inspect import Inspection, Interval, peek
from rollway.inspect.interval import UNITS

EVIL = "<script>alert(1)</script>"


def test_what_a_worker_wrote_is_escaped(name):
    schema = {"tokens": "int32[*]", EVIL: "int32[]"}
    with rollway.RecordServer(schema, rollway.ShmTransport(name)) as server:
        key = rollway.RecordKey(EVIL, EVIL, 0, EVIL, 0)
        metadata = {"messages": [{"role": EVIL, "content": EVIL}], EVIL: '"onload="'}
        server.submit({"tokens": [1, 2], EVIL: 3}, key=key, metadata=metadata)
        html = tables.peeked(peek(name))
    assert EVIL not in html and "<script" not in html and html.count("&lt;script&gt;") >= 6


def test_the_tables_of_a_ring_have_its_participants_and_numbers(name):
    with rollway.Server({"x": np.zeros(1)}, 2, rollway.ShmTransport(name)) as server:
        inspection = Inspection(name)
        before = inspection.look()
        server.submit({"x": np.ones(1)})
        interval = Interval(before, inspection.look())
        rows = tables.participants(interval, "role")
        assert "own producer" in rows and '<span class="chip good">alive</span>' in rows and "work 100%" in rows
        assert "samples_committed" in tables.counters(interval)
        assert "memcpy" in tables.times(interval) and "queue_dwell" not in tables.times(interval)


@pytest.mark.parametrize("kind", [*UNITS, "block", "unknown"])
def test_every_kind_has_plots_that_can_be_drawn_before_there_is_data(kind):
    for plot in plots.plots_of(kind):
        drawn = plots.options(plot, Series(10), now=1000.0, seconds=60)
        assert len(drawn["series"]) == len(plot.lines) and not plots.has_points(drawn)
    assert bool(plots.plots_of(kind)) == (kind in UNITS)


def test_a_plot_has_gaps_where_nothing_is_known(name):
    history = History([name])
    with rollway.Server({"x": np.zeros(1)}, 2, rollway.ShmTransport(name)):
        for _ in range(2):
            history.add(history.look())
    history.add(history.look())
    rates, *_, lag = (plots.options(plot, history.get(name).series, 2e9, 2e9) for plot in plots.plots_of("ring"))
    assert [value for _, value in rates["series"][0]["data"]] == [0.0, None]
    assert plots.has_points(rates) and not plots.has_points(lag)
