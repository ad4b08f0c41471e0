"""The figure of performance profiles: on how many workloads an arm is within τ of the fastest one."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .across import TAUS, Across
from .curves import line_of
from .look import look
from .style import WIDTH, Drawn, drawn, numbers, plain, short, where

TITLE = "On how many workloads within τ of the fastest"
CAPTION = (
    "Share of workloads on which an arm takes at most τ times as long as the fastest arm there (Dolan and"
    " Moré, 2002). At τ = 1: where it is the fastest. An arm with a run that missed its target is within τ of"
    " nothing."
)


def draw(found: Across) -> Drawn:
    """The figure as files."""
    return drawn("profile", lambda: profile(found), told=where(found.world, found.size))


def profile(found: Across) -> Figure:
    """A step curve for each arm, τ from 1 to 4 on a logarithmic axis."""
    figure = Figure(figsize=(WIDTH, 3.6))
    axes = figure.subplots()
    handles: list[Line2D] = []
    for label, shares in found.profile.items():
        style = look(found.arms[label])
        axes.step(
            TAUS,
            shares,
            where="post",
            color=style.colour,
            linestyle=line_of(style),
            linewidth=2,
            clip_on=False,
        )
        handles.append(
            Line2D([], [], color=style.colour, linestyle=line_of(style), label=plain(short(label, 40)))
        )
    axes.set_xscale("log")
    axes.set_xlim(1, TAUS[-1])
    axes.set_ylim(-0.03, 1.03)
    axes.set_xticks([1, 1.5, 2, 3, 4])
    axes.xaxis.set_major_formatter(numbers())
    axes.minorticks_off()
    axes.set_xlabel(f"τ: {found.measure} over that of the fastest arm")
    axes.set_ylabel("share of workloads")
    figure.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False, handlelength=3.5)
    return figure


def alternative(found: Across) -> str:
    """The figure in words, for who cannot see it."""
    told = "; ".join(
        f"{label}: fastest on {shares[0]:.0%}, within 4 times on {shares[-1]:.0%}"
        for label, shares in found.profile.items()
    )
    return f"{TITLE} ({where(found.world, found.size)}), {len(found.workloads)} workloads. {told}."
