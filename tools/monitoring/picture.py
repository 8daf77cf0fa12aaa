#!/usr/bin/env python3
"""Draws the dashboard from a Prometheus's answers, as SVG on standard output.

  tools/monitoring/picture.py [--seconds N] [--node REGEX] http://127.0.0.1:9090 > dashboard.svg

It shows what is in the panels without a Grafana; Grafana draws them in its own way.
"""
import argparse
import json
import sys
import time
import urllib.parse
import urllib.request
from xml.sax.saxutils import escape

from dashboard import dashboard

COLUMN, LINE, GAP = 50, 30, 4
COLOURS = ["#3274d9", "#e0752d", "#56a64b", "#a352cc", "#c4162a", "#8a8a00", "#00899b", "#7a5230"]
STEPS = 120


class Source:
    def __init__(self, url, seconds, node):
        self.url, self.seconds, self.node = url, seconds, node
        self.end = time.time()

    def ask(self, path, expression, **more):
        window = f"{max(4, self.seconds // 20)}s"
        expression = expression.replace("$__rate_interval", window).replace("$node", self.node)
        query = urllib.parse.urlencode({"query": expression, **more})
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=60) as answer:
            return json.load(answer)["data"]["result"]

    def now(self, expression):
        return self.ask("query", expression, time=self.end)

    def history(self, expression):
        return self.ask("query_range", expression, start=self.end - self.seconds, end=self.end,
                        step=max(1, self.seconds / STEPS))


def number(value, unit):
    if unit == "percentunit":
        return f"{100 * value:.0f} %"
    if unit == "s":
        for size, name in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
            if value >= size:
                return f"{value / size:.3g} {name}"
        return "0" if value == 0 else f"{value:.1e} s"
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {name}" + {"Bps": "B/s", "cps": "/s"}.get(unit, "")
    return f"{value:.3g}" + {"Bps": " B/s", "cps": " /s"}.get(unit, "")


def legend(text, labels):
    for name in set(labels) | {"for"}:
        text = text.replace("{{" + name + "}}", labels.get(name, ""))
    return text


class Drawing:
    def __init__(self):
        self.out = []

    def text(self, x, y, words, size=12, colour="#333", anchor="start", bold=False):
        weight = ' font-weight="bold"' if bold else ""
        self.out.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" '
                        f'text-anchor="{anchor}"{weight}>{escape(words)}</text>')

    def box(self, x, y, w, h):
        self.out.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="#fff" '
                        f'stroke="#d0d0d0"/>')

    def line(self, points, colour, width=1.2):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                        f'stroke-width="{width}"/>')


def finite(text):
    value = float(text)
    return value if value == value and abs(value) != float("inf") else None


def timeseries(draw, x, y, w, h, panel, source):
    unit, lines = panel["fieldConfig"]["defaults"]["unit"], []
    for target in panel["targets"]:
        for series in source.history(target["expr"]):
            points = [(t, v) for t, text in series["values"] if (v := finite(text)) is not None]
            if points:
                lines.append((legend(target["legendFormat"], series["metric"]), points))
    if not lines:
        draw.text(x + w / 2, y + h / 2, "no data", anchor="middle", colour="#999")
        return
    # The busiest ones have a place in the legend.
    lines.sort(key=lambda line: -max(v for _, v in line[1]))
    top = max(max(v for _, v in points) for _, points in lines) * 1.1 or 1
    left, bottom, width, height = x + 60, y + h - 38, w - 70, h - 70
    for part in range(5):
        at = bottom - height * part / 4
        draw.line([(left, at), (left + width, at)], "#eee", 1)
        draw.text(left - 4, at + 4, number(top * part / 4, unit), 10, "#777", "end")
    for i, (_, points) in enumerate(lines):
        draw.line([(left + width * (t - source.end + source.seconds) / source.seconds,
                    bottom - height * v / top) for t, v in points], COLOURS[i % len(COLOURS)])
    at, row = left, 0
    for i, (name, _) in enumerate(lines[:8]):
        wide = 18 + 6.2 * len(name)
        if at + wide > x + w and at > left:
            at, row = left, row + 1
        if row == 2:
            break
        draw.line([(at, bottom + 14 + 14 * row), (at + 12, bottom + 14 + 14 * row)],
                  COLOURS[i % len(COLOURS)], 3)
        draw.text(at + 15, bottom + 18 + 14 * row, name, 10)
        at += wide + 8


def stat(draw, x, y, w, h, panel, source):
    result = source.now(panel["targets"][0]["expr"])
    words = number(float(result[0]["value"][1]), panel["fieldConfig"]["defaults"]["unit"]) \
        if result else "no data"
    draw.text(x + w / 2, y + h / 2 + 20, words, 30, COLOURS[0], "middle", True)


def table(draw, x, y, w, h, panel, source):
    rows = sorted(source.now(panel["targets"][0]["expr"]), key=lambda r: -float(r["value"][1]))
    names = sorted({n for r in rows for n in r["metric"]})
    wide = w / (len(names) + 1)
    lines = [names + ["Value"]]
    lines += [[r["metric"].get(n, "") for n in names] + [number(float(r["value"][1]), "s")]
              for r in rows[:int((h - 50) / 16)]]
    for i, cells in enumerate(lines):
        for k, cell in enumerate(cells):
            draw.text(x + 12 + k * wide, y + 46 + 16 * i, cell, 11, bold=i == 0)


KINDS = {"timeseries": timeseries, "stat": stat, "table": table}


def picture(source, title):
    draw = Drawing()
    board = dashboard()
    bottom = 0
    for panel in board["panels"]:
        at = panel["gridPos"]
        x, y = at["x"] * COLUMN + GAP, at["y"] * LINE + 40 + GAP
        w, h = at["w"] * COLUMN - 2 * GAP, at["h"] * LINE - 2 * GAP
        bottom = max(bottom, y + h)
        if panel["type"] == "row":
            draw.text(x, y + 17, panel["title"], 15, bold=True)
            continue
        draw.box(x, y, w, h)
        draw.text(x + 10, y + 20, panel["title"], 13, bold=True)
        KINDS[panel["type"]](draw, x, y, w, h, panel, source)
    width, height = 24 * COLUMN, bottom + 10
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="sans-serif">'
            f'<rect width="{width}" height="{height}" fill="#f4f5f5"/>')
    draw.text(GAP, 24, title, 13, "#555")
    return head + "\n" + "\n".join(draw.out) + "\n</svg>\n"


def main():
    arguments = argparse.ArgumentParser(description="Draws the dashboard from a Prometheus.")
    arguments.add_argument("--seconds", type=int, default=3600, help="of the past [3600]")
    arguments.add_argument("--node", default=".*", help="regular expression [.*]")
    arguments.add_argument("url", help="of Prometheus, http://127.0.0.1:9090")
    o = arguments.parse_args()
    title = (f"Panels of the dashboard, drawn by picture.py from Prometheus's answers about "
             f"{o.seconds} s (not by Grafana)")
    sys.stdout.write(picture(Source(o.url.rstrip("/"), o.seconds, o.node), title))
    return 0


if __name__ == "__main__":
    sys.exit(main())
