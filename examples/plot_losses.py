#!/usr/bin/env python3
"""Draws loss curves that charlm printed, as an SVG. Needs nothing but Python.

    plot_losses.py NAME=FILE... > curves.svg
"""
import re
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 60, 20, 20, 50
COLOURS = ["#0b62a4", "#d95f02", "#1b9e77"]


def losses(path):
    with open(path, encoding="ascii") as f:
        return [float(x) for x in re.findall(r"^step +\d+  loss (\S+)$", f.read(), re.M)]


def main():
    curves = [(name, losses(path)) for name, path in (arg.split("=", 1) for arg in sys.argv[1:])]
    if not curves or not all(values for _, values in curves):
        sys.exit("usage: plot_losses.py NAME=FILE...   FILE as charlm prints it")
    steps = max(len(values) for _, values in curves)
    top = int(max(max(values) for _, values in curves)) + 1
    low = int(min(min(values) for _, values in curves))

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (top - loss) / (top - low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="13">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for loss in range(low, top + 1):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss}</text>')
    for i in range(7):
        step = steps * i // 6
        out.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step}</text>')
    out.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 10}" text-anchor="middle">step</text>')
    out.append(f'<text x="16" y="{HEIGHT / 2}" text-anchor="middle" '
               f'transform="rotate(-90 16 {HEIGHT / 2})">loss, nats a character</text>')
    for i, (name, values) in enumerate(curves):
        points = " ".join(f"{x(n + 1):.1f},{y(v):.1f}" for n, v in enumerate(values))
        colour = COLOURS[i % len(COLOURS)]
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
        out.append(f'<text x="{WIDTH - RIGHT - 8}" y="{TOP + 20 + 18 * i}" text-anchor="end" fill="{colour}">'
                   f'{name}</text>')
    print("\n".join(out + ["</svg>"]))


if __name__ == "__main__":
    main()
