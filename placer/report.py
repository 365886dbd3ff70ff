"""The report: one HTML file that needs no network and shows the answer first."""

import base64
import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from matplotlib.figure import Figure

from placer.bounds import Bound
from placer.evaluation import EXPERT, SINGLE_DEVICE

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("placer", "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What a report is made of.

    Attributes:
        graph: How people call the graph.
        topology: How people call the topology.
        rows: As ``Evaluation.rows`` returns them, the best first.
        device_names: Of the devices, in the order of ``peak_memory_bytes``.
        figures: By caption.
        facts: Versions, seeds, fingerprints: what one needs to do it again.
        bound: Makespan that no placement of the same groups is below; None if not known.
    """

    graph: str
    topology: str
    rows: Sequence[Mapping[str, Any]]
    device_names: Sequence[str]
    figures: Mapping[str, Figure]
    facts: Mapping[str, str]
    bound: Bound | None = None

    @property
    def gap(self) -> float | None:
        """How far the winner's makespan is above the bound, as a share of the bound."""
        gap: float | None = self.rows[0]["gap"]
        return gap

    def answer(self) -> str:
        """Return the result in one sentence."""
        return answer(self.graph, self.topology, self.rows)

    def html(self) -> str:
        """Return the whole report as one self-contained page."""
        return _TEMPLATES.get_template("report.html.j2").render(
            report=self,
            measured=any(row["step_time_s"] is not None for row in self.rows),
            images={caption: _image(figure) for caption, figure in self.figures.items()},
            bound_sentence=bound_sentence,
            percent=percent,
            seconds=seconds,
            speedup=speedup,
            gibibytes=gibibytes,
        )


def answer(graph: str, topology: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return in one sentence which placement won, by how much, and how sure that is.

    Args:
        graph: How people call the graph.
        topology: How people call the topology.
        rows: As ``Evaluation.rows`` returns them, the best first.
    """
    best = rows[0]
    measured = best["step_time_s"] is not None
    time_s = best["step_time_s"] if measured else best["makespan_s"]
    verb = "measured" if measured else "simulated"
    method = best["method"]
    subject = f"{graph} on {topology}: {seconds(time_s)} a step ({verb}), found by {method}"
    if method.startswith(SINGLE_DEVICE):
        return f"{subject}; nothing tried beats one device."
    single = _gain(best, "speedup_over_single", "the best single device")
    interval = best.get("speedup_over_single_interval")
    if interval is not None and interval[0] <= 1:
        return f"{subject}; no measurable win: {single}."
    expert = "" if method == EXPERT else _gain(best, "speedup_over_expert", f"the {EXPERT}")
    gains = [gain for gain in (single, expert) if gain]
    return subject + (f"; {' and '.join(gains)}." if gains else ".")


def bound_sentence(bound: Bound, gap: float | None, *, measured: bool = False) -> str:
    """Return in one sentence what no placement is below, and how near the one found is to it.

    Args:
        bound: Of the makespan.
        gap: How far the makespan found is above it, as a share of it.
        measured: Whether step times were measured as well: the bound is none of them.
    """
    sentence = f"no placement takes less than {seconds(bound.seconds)} ({bound.name})"
    if gap is not None:
        sentence += f", this one is {percent(gap)} above"
    return f"simulated, {sentence}; measured step times have no bound" if measured else sentence


def percent(share: float | None) -> str:
    """Return a share as a percentage; a dash for none."""
    return "–" if share is None else f"{share:.1%}"


def speedup(row: Mapping[str, Any], key: str) -> str:
    """Return a speed-up for a table, as ``1.21 (1.15–1.28)`` where its interval is known.

    Args:
        row: As ``Evaluation.rows`` returns it.
        key: ``speedup_over_single`` or ``speedup_over_expert``.
    """
    if row[key] is None:
        return "–"
    interval = row.get(f"{key}_interval")
    if interval is None:
        return f"{row[key]:.3f}"
    return f"{row[key]:.2f} ({interval[0]:.2f}–{interval[1]:.2f})"


def _gain(row: Mapping[str, Any], key: str, over: str) -> str:
    if row[key] is None:
        return ""
    gain = f"{row[key]:.2f} × as fast as {over}"
    if interval := row.get(f"{key}_interval"):
        gain += f" (95 % interval {interval[0]:.2f} to {interval[1]:.2f})"
    return gain


def seconds(time_s: float | None) -> str:
    """Return a time with four digits and the unit that suits it; a dash for none."""
    if time_s is None:
        return "–"
    if time_s == 0:
        return "0 s"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if time_s * factor >= 1:
            return f"{time_s * factor:.4g} {unit}" if time_s < 1000 else f"{time_s:,.0f} s"
    return f"{time_s * 1e9:.4g} ns"


def time_unit(time_s: float) -> tuple[str, float]:
    """Return the unit that suits a time, and what seconds are multiplied by."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if time_s * factor >= 1:
            return unit, factor
    return "µs", 1e6


def gibibytes(size_bytes: int) -> str:
    """Return a size in GiB."""
    return f"{size_bytes / 2**30:.2f} GiB"


def _image(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return base64.b64encode(buffer.getvalue()).decode()
