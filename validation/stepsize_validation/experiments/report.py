"""The report: one self-contained HTML file with all figures, tables, settings and versions."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepsize_opt.inputs import json_text, write_text
from stepsize_opt.sketches import BITS_NOTE
from stepsize_validation.experiments.axes import Axes
from stepsize_validation.experiments.catalogue import EXPERIMENTS
from stepsize_validation.experiments.curve import Curve
from stepsize_validation.experiments.figures import bar_efficiency, bar_savings, draw
from stepsize_validation.experiments.tables import as_html, saved_iterations
from stepsize_validation.runs import LEVEL

_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:1250px;margin:2em auto;padding:0 1em;color:#111}"
    "table{border-collapse:collapse;font-size:12.5px;margin:.8em 0}td,th{border-bottom:1px solid #ccc;"
    "padding:.2em .6em;text-align:left}th{background:#f2f2f2}.ours{font-weight:600}img{max-width:100%}"
    "figure{margin:1em 0}figcaption{color:#444;font-size:13px}dt{font-weight:600;float:left;clear:left;width:9em}"
    "dd{margin:0 0 .3em 10em}.wide,figure{overflow-x:auto}"
    "@media(max-width:46em){img{max-width:none;width:60em}td{min-width:6em}dt{float:none}dd{margin:0 0 .6em 1em}}"
    "details{margin:.6em 0}summary{cursor:pointer;color:#0072B2}code{background:#f2f2f2;padding:0 .2em}"
)

_DEFINITIONS = (
    "<dl>"
    + "".join(
        f"<dt>{name}</dt><dd>{text}</dd>"
        for name, text in (
            ("rate", "det(D)^(1/d); the theory asks for 2(f(x⁰) − f^inf)/(rate · ε²) iterations."),
            ("G_K", "the mean over the first K steps of ‖∇f‖² in the norm of D/det(D)^(1/d), which Theorem 1 bounds."),
            ("E_K", "the same mean in the Euclidean norm."),
            (
                "level",
                "the value of G_K at which methods are compared: the ε² of the settings, or the least that both reach.",
            ),
            (
                "CGD, CGD-mat",
                "D = γI with γ = 1/((1 + ω)λmax(L)), and with the largest γ that the matrix condition allows.",
            ),
            (
                "descent metric",
                "H = 2D − T(D), T(D) the left-hand side of the condition: f falls by ½‖∇f‖²_H in expectation.",
            ),
            ("gap", "how far the optimal D can be from the best possible one, certified."),
            (
                "holds",
                f"the {LEVEL:.1%} upper confidence bound of the mean over the seeds is below the bound of the theorem.",
            ),
            ("violated", f"the {LEVEL:.1%} lower confidence bound is above it; undecided: neither."),
        )
    )
    + "</dl>"
)
_SAVINGS_CAPTION = (
    "Iterations of the paper's best choice divided by those of the optimal D, for each experiment, data set and "
    "setting, on a log scale: above 1 the optimal D saves. Plain: under the paper's condition; hatched: in the descent "
    "metric. A missing bar: not observed."
)
# Fields of the plan in words; the others are words already.
_SETTINGS = {
    "datasets": "data sets",
    "reg": "λ",
    "reg_distributed": "λ with clients",
    "seeds": "seeds, independent runs",
    "seed": "first seed",
    "iterations": "steps K",
    "short": "quick sizes",
    "clients": "numbers of clients",
    "fraction": "fraction of the coordinates sent in (d)",
    "epsilon2": "ε², the level",
    "epsilon2_distributed": "ε² with clients",
    "time_limit": "seconds for each distributed solve",
    "draws": "subsamples for each fraction",
}


def write_report(letters: Sequence[str], curves: Sequence[Curve], tables: dict[str, Any], output: Path) -> None:
    """Draw ``figures/*.png`` and write ``tables.json`` and ``report.html`` for the experiments of these letters."""
    figures = _draw_all(letters, curves, tables["savings"], output / "figures")
    write_text(output / "tables.json", json_text(tables, indent=1) + "\n")
    write_text(output / "report.html", _page(letters, tables, figures))


def _draw_all(
    letters: Sequence[str], curves: Sequence[Curve], saved: Sequence[dict[str, Any]], folder: Path
) -> dict[str, list[Path]]:
    out: dict[str, list[Path]] = {"savings": [bar_savings(saved, folder / "savings.png")]}
    for letter in letters:
        experiment = EXPERIMENTS[letter]
        group = [curve for curve in curves if curve.meta["experiment"] == letter]
        out[letter] = [
            draw(group, shown, experiment.title, folder / f"{letter}_{shown.y.name}_{shown.x.name}.png")
            for shown in experiment.figures
        ]
        if experiment.efficiency_bars:
            out[letter].append(bar_efficiency(group, folder / f"{letter}_efficiency.png"))
    return out


def _page(letters: Sequence[str], tables: dict[str, Any], figures: Mapping[str, Sequence[Path]]) -> str:
    made = datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC")
    parts = [
        "<h1>Matrix stepsizes for compressed gradient descent: the experiments, with the optimal D</h1>",
        f"<p>Made on {made} with stepsize-opt {html.escape(tables['versions']['stepsize-opt'])}. The experiments are "
        'those of Li, Karagulyan and Richtárik, <a href="https://arxiv.org/abs/2305.12568">Det-CGD: Compressed '
        "Gradient Descent with Matrix Stepsizes for Non-Convex Optimization</a>, and one more against the limit. The "
        "objective is logistic regression with the non-convex regulariser λ Σ x²/(1+x²), L = AᵀA/(4m) + 2λI, unless a "
        "section says otherwise; gradients are true ones (checked by finite differences).</p>",
        _DEFINITIONS,
        "<h2>What the optimal D saves</h2>",
        "<p>Iterations saved by the optimal D (in (e), by the best of this project's methods) over the best of the "
        "paper's choices that satisfies its condition and sends as many numbers a round: predicted by the theory, and "
        "observed until G_K reaches the level. Where the share is negative, the paper's choice is better. Nothing is "
        "called observed where a curve does not reach the level, or reaches it within ten steps.</p>",
        as_html(saved_iterations(tables["savings"]), list(saved_iterations(tables["savings"])[0])),
        *(_image(path, _SAVINGS_CAPTION) for path in figures["savings"]),
        "<details><summary>As ratios, with levels and certified gaps</summary>",
        as_html(tables["savings"], list(tables["savings"][0])),
        "</details>",
        "<h2>Do the bounds hold?</h2>",
        as_html(
            [{"experiment": name, **counts} for name, counts in tables["verdicts"].items()],
            ["experiment", "holds", "undecided", "violated", "diverged"],
        ),
    ]
    columns = [name for name in tables["curves"][0] if name not in ("experiment", "ours")]
    for letter in letters:
        experiment = EXPERIMENTS[letter]
        parts += [f"<h2>{html.escape(experiment.title)}</h2>", f"<p>{html.escape(experiment.text)}</p>"]
        captions = [_caption(shown) for shown in experiment.figures]
        if experiment.efficiency_bars:
            captions.append("The rate that each method guarantees, over the limit for as many floats per round.")
        parts += [_image(path, caption) for path, caption in zip(figures[letter], captions, strict=True)]
        records = [record for record in tables["curves"] if record["experiment"] == letter]
        parts.append(
            f"<details><summary>K and bits to the level, verdicts</summary>{as_html(records, columns)}"
            f"<p>{html.escape(BITS_NOTE)}</p></details>"
        )
    if "predicted" in tables:
        parts += [
            "<h2>Predicted savings for two regularisations</h2>",
            "<p>For rand-1 the diagonal stepsize is globally optimal if and only if the smallest eigenvalue of the "
            "correlation matrix of L is at least ½; a large λ brings it there, and nothing is left to save.</p>",
            as_html(tables["predicted"], list(tables["predicted"][0])),
            "<h2>Sensitivity to L</h2>",
            "<p>L taken as factor·L:</p>",
            as_html(tables["factors"], list(tables["factors"][0])),
            "<p>L estimated from a fraction of the rows:</p>",
            as_html(tables["subsamples"], list(tables["subsamples"][0])),
            "<p>The largest margin that 95 % of the draws need on any of these data sets:</p>",
            as_html(tables["margins"], list(tables["margins"][0])),
            f"<h2>Table 1 of the paper for {html.escape(str(tables['table 1']['data']))}, computed and as printed</h2>",
            as_html(
                tables["table 1"]["rows"],
                ["row", "method", "sketch", "stepsize", "computed", "descent", "printed", "differs", "note"],
            ),
        ]
    plan = {**tables["settings"], "confidence level of a verdict": f"{LEVEL:.1%}, one-sided"}
    parts += [
        "<h2>Settings and versions</h2>",
        f"<p>Computing time of the runs: {tables['run_seconds']:.0f} s; this call took {tables['seconds']:.0f} s.</p>",
        as_html([{"setting": _SETTINGS.get(k, k), "value": v} for k, v in plan.items()], ["setting", "value"]),
        as_html([{"package": k, "version": v} for k, v in tables["versions"].items()], ["package", "version"]),
    ]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>stepsize-opt: experiments</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _caption(shown: Axes) -> str:
    """What a figure shows, in words."""
    return (
        f"{shown.y.words} against {shown.x.words}: the mean over the seeds with two standard errors; "
        "one panel for each data set and setting, the optimal D drawn thicker."
    )


def _image(path: Path, caption: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    picture = f'<img alt="{html.escape(caption)}" src="data:image/png;base64,{data}">'
    return f"<figure>{picture}<figcaption>{html.escape(caption)}</figcaption></figure>"
