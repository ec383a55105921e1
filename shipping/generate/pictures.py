"""Pictures of the documentation as SVG: the break-even, the loop, the opt-in and draining. Text follows light or dark paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from breakeven.laws.latency import open_loop_latency

# Okabe and Ito, as in reporting.theme; lines differ in dashes too.
_STYLE = """
.paper{fill:#fff}.ink{stroke:#333}.text{fill:#222;font:14px sans-serif}.small{fill:#555;font:12px sans-serif}
.box{fill:#eef4fa;stroke:#0072B2}.own{fill:#fdf0e6;stroke:#D55E00}.none{stroke:#333}.arm{stroke:#D55E00}.edge{stroke:#009E73}
@media (prefers-color-scheme:dark){.paper{fill:#14171c}.ink{stroke:#ccc}.text{fill:#eee}.small{fill:#bbb}
.box{fill:#16283a;stroke:#5AB4F0}.own{fill:#3a2416;stroke:#FF8A3D}.none{stroke:#eee}.arm{stroke:#FF8A3D}.edge{stroke:#3CCB9E}}
""".replace("\n", "")

# C1 (s) and C2 (s per other request in flight), of no speculation and of an arm that halves C1.
NONE, ARM = (1.0, 0.05), (0.5, 0.08)
DRAIN_S = {"preStop": 10, "--shutdown-timeout": 120, "terminationGracePeriodSeconds": 150}
"""Seconds of examples/vllm-a100.yaml."""


def break_even_rps() -> float:
    """The load at which both lines of the picture cross, requests per second."""
    c1_ratio = ARM[0] / NONE[0]
    return (1.0 - c1_ratio) / (ARM[1] - c1_ratio * NONE[1])


def pictures() -> dict[str, str]:
    """Every picture by its file name."""
    return {"break-even.svg": break_even_svg(), "loop.svg": loop_svg(), "opt-in.svg": opt_in_svg()}


def break_even_svg() -> str:
    """Latency against load of two laws, which cross at the break-even."""
    left, bottom, width, height, end_rps, end_s = 60.0, 270.0, 560.0, 230.0, 12.0, 4.0

    def x(rps: float) -> float:
        return left + width * rps / end_rps

    def y(seconds: float) -> float:
        return bottom - height * min(seconds / end_s, 1.0)

    def curve(law: tuple[float, float], kind: str, dashes: str) -> str:
        loads = [end_rps * step / 60.0 for step in range(61)]
        seen = [(rps, float(open_loop_latency(*law, rps))) for rps in loads if rps * law[1] < 1.0]
        points = " ".join(f"{x(rps):.1f},{y(seconds):.1f}" for rps, seconds in seen if seconds <= end_s)
        return f'<polyline class="{kind}" fill="none" stroke-width="2.5" stroke-dasharray="{dashes}" points="{points}"/>'

    edge = break_even_rps()
    crossing_s = float(open_loop_latency(*NONE, edge))
    parts = [
        _line(left, bottom, left + width, bottom, "ink"),
        _line(left, bottom, left, bottom - height, "ink"),
        *(_text(x(rps), bottom + 20, f"{rps:g}", "small", "middle") for rps in range(0, 13, 3)),
        *(_text(left - 8, y(seconds) + 4, f"{seconds:g} s", "small", "end") for seconds in range(1, 5)),
        _text(left + width / 2, bottom + 42, "load, requests per second per replica", "text", "middle"),
        curve(NONE, "none", "7 4"),
        curve(ARM, "arm", "1 0"),
        _line(x(edge), bottom, x(edge), y(crossing_s) - 40, "edge"),
        _text(x(edge) - 6, y(crossing_s) - 34, f"break-even {edge:.1f} rps", "text", "end"),
        '<line class="none" x1="80" y1="40" x2="120" y2="40" stroke-width="2.5" stroke-dasharray="7 4"/>',
        _text(128, 45, "no speculation: C1 1 s, C2 50 ms", "text"),
        '<line class="arm" x1="80" y1="64" x2="120" y2="64" stroke-width="2.5"/>',
        _text(128, 69, "with speculation: C1 0.5 s, C2 80 ms", "text"),
        _text(x(4.5), bottom - 14, "pays here", "small", "middle"),
        _text(x(10.9), bottom - 14, "loses here", "small", "middle"),
    ]
    return _svg(650, 330, "Latency against load: two lines that cross at the break-even", parts)


def loop_svg() -> str:
    """Five steps of the operator, and what starts the loop again."""
    steps = (
        ("measure", "one pod per arm,", "beside the fleet"),
        ("fit", "C1, C2, break-even,", "with bounds"),
        ("watch", "load, lengths,", "acceptance"),
        ("decide", "which arm, for the", "loads to come"),
        ("roll and prove", "old pods against new", "ones, or undo"),
    )
    parts = [
        part
        for place, lines in enumerate(steps)
        for part in _box(10 + 170 * place, 30, 140, 80, lines, "box")
    ]
    parts += [_arrow(150 + 170 * place, 70, 180 + 170 * place, 70) for place in range(4)]
    parts += [
        '<path class="ink" fill="none" stroke-width="1.5" d="M760 110 V150 H80 V114" marker-end="url(#tip)"/>',
        _text(
            420,
            143,
            "new image, model or GPU class; acceptance or lengths that moved; a schedule",
            "small",
            "middle",
        ),
    ]
    return _svg(850, 165, "The loop: measure, fit, watch, decide, roll and prove, and measure again", parts)


def opt_in_svg() -> str:
    """The way of an arm into an engine, and the end of a pod that loses no request."""
    way = (
        ("the operator", "writes one annotation", "of the pod template", "own"),
        ("the pod's env", "takes the annotation's", "value (your line)", "box"),
        ("vLLM's argument", "takes the variable", "(your line)", "box"),
        ("the engine", "starts with this arm;", "empty: no speculation", "box"),
    )
    parts = [_text(10, 20, "Opt-in: two lines of your manifest, written once", "text")]
    for place, (title, first, second, kind) in enumerate(way):
        parts += _box(10 + 195 * place, 32, 165, 80, (title, first, second), kind)
    parts += [_arrow(175 + 195 * place, 72, 205 + 195 * place, 72) for place in range(3)]
    pause_s, drain_s, grace_s = DRAIN_S.values()
    begin, scale = 30.0, 4.4
    ends = [begin + scale * seconds for seconds in (0, pause_s, pause_s + drain_s, grace_s)]
    spans = (
        ("own", "preStop", ends[0], ends[1]),
        ("box", f"--shutdown-timeout={drain_s}: requests in flight end, none comes", ends[1], ends[2]),
        ("paper", "spare", ends[2], ends[3]),
    )
    parts.append(_text(10, 150, "Draining: a pod that is replaced ends its requests first", "text"))
    for kind, words, start, end in spans:
        size = f'x="{start:.1f}" y="185" width="{end - start:.1f}" height="36"'
        parts.append(f'<rect class="{kind} ink" {size} stroke-width="1"/>')
        fits = words != "preStop"
        at, height, anchor = ((start + end) / 2, 208, "middle") if fits else (start, 178, "start")
        parts.append(_text(at, height, words, "small", anchor))
    passed_s = (0, pause_s, pause_s + drain_s, grace_s)
    for place, (tick, at_s) in enumerate(zip(ends, passed_s, strict=True)):
        event = ("deleted", "SIGTERM", "engine ends", "SIGKILL")[place]
        parts.append(_line(tick, 221, tick, 229, "ink"))
        height = 243 + 18 * (place % 2)
        parts.append(_text(tick, height, f"{at_s} s: {event}", "small", "middle" if place > 1 else "start"))
    return _svg(800, 275, "Opt-in by an annotation, and draining before the end of a pod", parts)


def _svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="ink" fill="none" d="M0 0 L9 5 L0 10"/></marker></defs>\n'
        f'<rect class="paper" width="{width}" height="{height}"/>\n{body}\n</svg>\n'
    )


def _box(x: float, y: float, width: float, height: float, lines: Sequence[str], kind: str) -> list[str]:
    middle = x + width / 2
    title, *rest = lines
    return [
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" stroke-width="1.5"/>',
        _text(middle, y + 24, title, "text", "middle"),
        *(_text(middle, y + 46 + 18 * place, line, "small", "middle") for place, line in enumerate(rest)),
    ]


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return (
        f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-width="1.5"/>'
    )


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return _line(x1, y1, x2, y2, "ink").replace("/>", ' marker-end="url(#tip)"/>')
