"""One look for every figure: a colour-blind safe palette in which a method keeps its colour everywhere."""

import io
import zlib
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from rose_jax.methods import split
from rose_jax.report.paper import canonical

SEQUENTIAL = "cividis"  # perceptually uniform, and looks the same to colour-blind readers
DPI = (150, 120, 96)
MOST_BYTES = 60_000


@dataclass(frozen=True)
class Look:
    color: str
    dash: str
    marker: str
    width: float = 1.8
    stands_out: bool = False  # drawn above the others


def look(method: str) -> Look:
    """How `method` is drawn, the same in every figure. The look of an unknown name is computed from its letters.

    A row of the paper on another objective's encoders (lwf+rose) or with another classifier (rose_whitened) keeps its
    colour.
    """
    name = canonical(method)
    if name in _LOOKS:
        return _LOOKS[name]
    plain, classifier = split(name)
    objective, _, row = plain.rpartition("+")
    if row in _LOOKS and (objective in _ELSEWHERE or classifier):
        dash, marker = _ELSEWHERE.get(objective, ("--", "*"))
        return Look(_LOOKS[row].color, dash, _CLASSIFIERS.get(classifier or "", marker))
    code = zlib.crc32(name.encode())
    colors, dashes, markers = (_BLUE, _GREEN, _ORANGE, _SKY, _PINK, _GREY), ("-", "--", ":", "-."), "X*ph"
    return Look(colors[code % 6], dashes[code // 6 % 4], markers[code // 24 % 4])


def class_color(number: int) -> str:
    """Of the number-th class in a figure where colours are classes."""
    return _CLASSES[number % len(_CLASSES)]


def ink_on(color: str) -> str:
    """Black or white, whichever has more contrast with a colour (by its relative luminance, as WCAG defines both)."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(color)]
    return "black" if np.dot(linear, (0.2126, 0.7152, 0.0722)) > 0.179 else "white"


def theme(name: str) -> Any:
    """rcParams of the "light" or "dark" theme, for matplotlib.rc_context."""
    ink, faint, background = _THEMES[name]
    colors = {
        ink: ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"),
        faint: ("axes.edgecolor", "grid.color"),
        background: ("axes.facecolor", "figure.facecolor", "savefig.facecolor"),
    }
    return _COMMON | {key: color for color, keys in colors.items() for key in keys}


def png(figure: Figure) -> bytes:
    """The figure as a PNG with a palette of 256 colours, coarser only if it would be heavy for a README."""
    canvas = FigureCanvasAgg(figure)
    for dpi in DPI:
        figure.set_dpi(dpi)
        canvas.draw()
        # What is drawn next takes the same places: to measure all texts anew is much of the work.
        figure.set_layout_engine("none")
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
        # The palette first covers the whole range of colours; then k-means moves it to the frequent ones, so that each
        # method's colour stays exact.
        image = image.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
        buffer = io.BytesIO()
        image.save(buffer, "PNG", optimize=True)
        if buffer.tell() < MOST_BYTES:
            break
    return buffer.getvalue()


def vector(figure: Figure, kind: str) -> bytes:
    """The figure as "pdf" or "svg" for a paper: the same bytes whenever it is drawn, without a background."""
    buffer, background = io.BytesIO(), figure.get_facecolor()
    figure.set_facecolor("none")
    # Not savefig, which draws everything once more, to measure it.
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "rose_jax"}):
        if kind == "pdf":
            FigureCanvasPdf(figure).print_pdf(buffer, metadata={"CreationDate": None})
        else:
            FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    figure.set_facecolor(background)
    return buffer.getvalue()


def short(name: str, most: int = 24) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


# Okabe and Ito's palette without black and yellow, which vanish on one of the two backgrounds. The four methods of
# every run avoid green: to most colour-blind eyes it is the grey of `base`.
_RED, _BLUE, _GREEN, _ORANGE = "#D55E00", "#0072B2", "#009E73", "#E69F00"
_SKY, _PINK, _GREY = "#56B4E9", "#CC79A7", "#808080"

NEW_CLASS = "#9a9fa6"  # of classes without a colour of their own
# The six above, and Tol's wine and pale yellow, which differ from them in lightness.
_CLASSES = (_BLUE, _ORANGE, _GREEN, _RED, _SKY, _PINK, "#882255", "#DDCC77")

_COMMON = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same letters on every machine
    "font.size": 11,
    "text.parse_math": False,  # a "$" in a method's name is a "$"
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "grid.alpha": 0.45,
    "grid.linewidth": 0.6,
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 10),
    "lines.markersize": 4.5,
}

_THEMES = {  # ink, faint lines, background; page.py uses the same backgrounds
    "light": ("#1b1f24", "#b8bec6", "#ffffff"),
    "dark": ("#e3e6ea", "#4a515a", "#14171b"),
}

_ELSEWHERE = {  # dash and marker
    "base": ("-.", "P"),
    "lwf": ("--", "P"),
    "efc": ("-.", "X"),
    "fcs": (":", "h"),
    "pass": ("--", "p"),
    "il2a": (":", "d"),
}

_CLASSIFIERS = {"whitened": "*", "ridge": "p"}  # marker

_LOOKS = {
    "rose": Look(_RED, "-", "o", 2.8, stands_out=True),
    "projector": Look(_BLUE, "-", "s"),
    "gd": Look(_SKY, "-", "^"),
    "base": Look(_GREY, "-", "D"),
    "gd_queue": Look(_SKY, "--", "v"),
    "gd_oracle": Look(_SKY, ":", "<"),
    "ldc": Look(_GREEN, "-", "o"),
    "adc": Look(_ORANGE, "-", "s"),
    "sdc": Look(_PINK, "-", "^"),
    "lwf": Look(_GREY, "--", "v"),
    "lwf_ncm": Look(_GREY, ":", "P"),
    "dpcr": Look(_SKY, "-.", "d"),
    "efc": Look(_GREEN, "--", "s"),
    "fcs": Look(_ORANGE, "--", "o"),
    "pass": Look(_PINK, "--", "D"),
    "il2a": Look(_BLUE, "--", "<"),
    "ssre": Look(_BLUE, ":", ">"),
    "fetril": Look(_BLUE, "-.", "^"),
    "fecam_1": Look(_PINK, ":", "v"),
    "fecam_c": Look(_PINK, "-.", "<"),
    "tent": Look(_GREEN, ":", "D"),
    "ttt": Look(_ORANGE, ":", "^"),
    "ttt++": Look(_ORANGE, "-.", "v"),
    "cotta": Look(_GREY, ":", ">"),
    "eata": Look(_GREEN, "-.", ">"),
    "batch_norm": Look(_BLUE, ":", "X"),
    "ttt_off": Look(_ORANGE, "--", "P"),
    "ttt++_off": Look(_PINK, "--", "P"),
}
