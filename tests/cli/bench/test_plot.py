"""A chart shows every point where its values are, and keeps names apart."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

from mmcached.cli.bench.figures import size_text, time_text
from mmcached.cli.bench.plot import BOTTOM, HEIGHT, LEFT, LINE_HEIGHT, RIGHT, TOP, WIDTH, chart


def draw(series: dict[str, list[tuple[float, float]]], ticks: list[float]) -> ET.Element:
    return ET.fromstring(chart("<title>", series, x_ticks=ticks, x_text=lambda x: size_text(int(x)), y_text=time_text))


def dots(svg: ET.Element, number: int) -> list[tuple[float, float]]:
    found = svg.iterfind(f"circle[@class='dot s{number}']")
    return [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in found]


def test_both_axes_are_logarithmic() -> None:
    line = [(1024.0, 10.0), (1024.0**2, 100.0), (1024.0**3, 1000.0)]
    (x0, y0), (x1, y1), (x2, y2) = dots(draw({"hit": line}, [x for x, _ in line]), 0)
    assert abs((x1 - x0) - (x2 - x1)) < 0.2
    assert abs((y0 - y1) - (y1 - y2)) < 0.2
    assert (x0, x2) == (LEFT, WIDTH - RIGHT)
    assert (y0, y2) == (HEIGHT - BOTTOM, TOP)


def test_a_point_says_its_figures_and_words_are_no_markup() -> None:
    svg = draw({"<hit>": [(4096.0, 16.4)]}, [4096.0])
    assert [title.text for title in svg.iter("title")] == ["<hit>, 4 KiB: 16 µs"]
    assert svg.attrib["aria-label"] == "<title>"


def test_what_stands_beside_the_axis_is_whole() -> None:
    """Letters of 12 pixels are at most 7 wide on average."""
    svg = ET.fromstring(chart("", {"a": [(1.0, 1.0)]}, x_ticks=[1.0], x_text=str, y_text=lambda y: "10,000 GB/s"))
    texts = [each for each in svg.iter("text") if each.attrib.get("text-anchor") == "end"]
    assert texts
    assert all(float(each.attrib["x"]) >= 7 * len(each.text or "") for each in texts)


def test_names_of_lines_that_end_together_do_not_overlap() -> None:
    names = {f"line {number}": [(1.0, 10.0), (8.0, 10.0 + number / 100)] for number in range(7)}
    svg = draw(names, [1.0, 8.0])
    places = sorted(float(each.attrib["y"]) for each in svg.iter("text") if "name" in each.attrib.get("class", ""))
    gaps = [after - before for before, after in itertools.pairwise(places)]
    assert len(gaps) == 6
    assert min(gaps) >= LINE_HEIGHT - 0.2
    assert places[-1] <= HEIGHT


def test_a_line_without_points_is_left_out() -> None:
    assert dots(draw({"none": [], "one": [(1.0, 1.0)]}, [1.0]), 1)
