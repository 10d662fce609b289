"""The report: one self-contained HTML file with all figures, tables, settings and versions."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepsize_opt.inputs import json_text, write_text
from stepsize_opt.sketches import BITS_NOTE
from stepsize_validation.experiments.catalogue import EXPERIMENTS
from stepsize_validation.experiments.curve import Curve
from stepsize_validation.experiments.figures import bar_savings, draw
from stepsize_validation.experiments.tables import as_html, saved_iterations

_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:1250px;margin:2em auto;padding:0 1em;color:#111}"
    "table{border-collapse:collapse;font-size:12.5px;margin:.8em 0}td,th{border-bottom:1px solid #ccc;"
    "padding:.2em .6em;text-align:left}th{background:#f2f2f2}.ours{font-weight:600}img{max-width:100%}"
    "details{margin:.6em 0}summary{cursor:pointer;color:#0072B2}code{background:#f2f2f2;padding:0 .2em}"
)


def write_report(letters: Sequence[str], curves: Sequence[Curve], tables: dict[str, Any], output: Path) -> None:
    """Draw ``figures/*.png`` and write ``tables.json`` and ``report.html`` for the experiments of these letters."""
    figures = _draw_all(letters, curves, tables["savings"], output / "figures")
    write_text(output / "tables.json", json_text(tables, indent=1) + "\n")
    write_text(output / "report.html", _page(letters, tables, figures))


def _draw_all(
    letters: Sequence[str], curves: Sequence[Curve], saved: Sequence[dict[str, Any]], folder: Path
) -> dict[str, list[Path]]:
    out: dict[str, list[Path]] = {"savings": []}
    for letter in letters:
        experiment = EXPERIMENTS[letter]
        group = [curve for curve in curves if curve.meta["experiment"] == letter]
        out[letter] = [
            draw(group, shown, experiment.title, folder / f"{letter}_{shown.y.name}_{shown.x.name}.png")
            for shown in experiment.figures
        ]
        if experiment.savings_bars:
            bars = [record for record in saved if record["experiment"] == letter]
            out["savings"].append(bar_savings(bars, folder / f"{letter}_savings.png"))
    return out


def _page(letters: Sequence[str], tables: dict[str, Any], figures: Mapping[str, Sequence[Path]]) -> str:
    parts = [
        "<h1>Matrix stepsizes for compressed gradient descent: the experiments, with the optimal D</h1>",
        "<p>Logistic regression with the non-convex regulariser λ Σ x²/(1+x²), true gradients (checked by finite "
        "differences), L = AᵀA/(4m) + 2λI. Verdicts compare the mean over seeds, with a one-sided confidence bound, "
        "with the bound of the theorem; see the settings below.</p>",
        "<h2>What the optimal D saves</h2>",
        "<p>Iterations saved by the optimal D over the best of the paper's choices that satisfies its condition, for "
        "each data set: predicted by the theory, and observed until G_K reaches the level. Where the share is "
        "negative, det-CGD2 with its own optimum is the better method.</p>",
        as_html(saved_iterations(tables["savings"]), list(saved_iterations(tables["savings"])[0])),
        *(_image(path) for path in figures["savings"]),
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
        parts += [_image(path) for path in figures[letter]]
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
    settings = html.escape(json_text({"plan": tables["settings"], "versions": tables["versions"]}, indent=1))
    parts += [
        "<h2>Settings and versions</h2>",
        f"<p>Computing time of the runs: {tables['run_seconds']:.0f} s; this call took {tables['seconds']:.0f} s.</p>",
        f"<pre>{settings}</pre>",
    ]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>stepsize-opt: experiments</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<p><img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}"></p>'
