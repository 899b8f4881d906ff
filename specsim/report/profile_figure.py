"""Measured points against a profile as a picture: seconds by tokens of the pass, and the error at each point."""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.points import Point
from specsim.errors import ScenarioError
from specsim.profiles import LatencyProfile
from specsim.report.profile import errors_at

__all__ = ["write_figure"]

_KINDS = (
    ("prompt chunks", lambda p: p.is_prefill),
    ("decoding, one token each", lambda p: not p.is_prefill and p.tokens == len(p.parts)),
    ("verifying several tokens", lambda p: not p.is_prefill and p.tokens > len(p.parts)),
)


def write_figure(profile: LatencyProfile, points: Sequence[Point], path: str) -> None:
    """Write `path` (.svg or .png): crosses are the fit, dots measured points, rings held-out ones.

    Raises:
        ScenarioError: without matplotlib, or without points that the profile says something of.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise ScenarioError(
            "a picture needs matplotlib: pip install '.[report]' in the folder of specsim; the text needs nothing"
        ) from None
    shown = [(p, s) for p, s in errors_at(profile, points) if p.parts and p.kind in ("body", "whole")]
    if not shown:
        raise ScenarioError("there are no measured passes to draw; give the points file with --points")
    with rc_context({"svg.hashsalt": "specsim", "font.size": 9}):
        figure = Figure(figsize=(10, 4.5), layout="constrained")
        seconds, errors = figure.subplots(1, 2)
        for n, (title, belongs) in enumerate(_KINDS):
            group = [(p, s) for p, s in shown if belongs(p) and p.role == "target"]
            if not group:
                continue
            color = f"C{n}"
            tokens = [p.tokens for p, _ in group]
            seconds.errorbar(
                tokens, [p.seconds * 1e3 for p, _ in group],
                yerr=[
                    [(p.seconds - p.low_s) * 1e3 for p, _ in group],
                    [(p.high_s - p.seconds) * 1e3 for p, _ in group],
                ],
                fmt="o", color=color, markersize=3, linewidth=1, label=title,
            )  # fmt: skip
            seconds.plot(tokens, [s * 1e3 for _, s in group], "x", color=color, markersize=5)
            for held, marker in ((False, "."), (True, "o")):
                part = [(p, s) for p, s in group if p.is_holdout == held]
                errors.plot(
                    [p.seconds * 1e3 for p, _ in part], [100 * (s / p.seconds - 1) for p, s in part], marker,
                    color=color, markerfacecolor="none" if held else color,
                    label=f"{title}{', held out' if held else ''}" if part else None,
                )  # fmt: skip
        seconds.set(xscale="log", yscale="log", xlabel="tokens in the pass", ylabel="ms: measured o, fit x")
        errors.axhline(0, color="grey", linewidth=0.8)
        errors.set(xscale="log", xlabel="measured ms", ylabel="fit over measured, less 1 (%)")
        for axes in (seconds, errors):
            axes.legend(fontsize=7)
            axes.grid(alpha=0.3)
        figure.suptitle(profile.name, fontsize=9)
        metadata = {"Date": None} if path.endswith(".svg") else {"Software": None}
        try:
            figure.savefig(path, dpi=150, metadata=metadata)
        except OSError as error:
            raise ScenarioError(f"-o {path}: cannot be written: {error.strerror}") from None
