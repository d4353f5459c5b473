"""Arguments and options of the commands, above all those that several of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.completion import sweep_files, sweep_names

RESULTS = Path("results")

FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="sweep file, name or folder of a sweep, or a sweep that ships", autocompletion=sweep_files
    ),
]
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="name or results folder of a sweep", autocompletion=sweep_names)
]
ResultsOption = Annotated[Path, typer.Option("--results", metavar="DIR", help="where results folders are")]
AxisOption = Annotated[
    list[str],
    typer.Option(
        "--axis", metavar="NAME=SCALE:...", help="add or replace an axis: lr=log:1e-4,1e-1,7 or clip=values:none,1"
    ),
]
DropOption = Annotated[
    list[str], typer.Option("--drop", metavar="AXIS", help="leave this axis out; --set fixed.AXIS=VALUE fixes it")
]
SetOption = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="set any key of the file: fixed.batch_size=16")
]
SeedsOption = Annotated[str | None, typer.Option("--seeds", metavar="N,N,...", help="the seeds, e.g. 0,1,2")]
StepsOption = Annotated[int | None, typer.Option("--steps", help="length of each training run")]
SweepNameOption = Annotated[str | None, typer.Option("--name", help="name of the sweep")]
AllowImportOption = Annotated[
    bool, typer.Option("--allow-import", help="import the Python code that the sweep file names")
]
XOption = Annotated[str | None, typer.Option("--x", help="horizontal axis; the first by default")]
YOption = Annotated[str | None, typer.Option("--y", help="vertical axis; the second by default")]
WhereOption = Annotated[
    list[str], typer.Option("--where", metavar="AXIS=VALUE", help="only cells with this value of another axis")
]
ReduceOption = Annotated[
    str, typer.Option("--reduce", help="for axes that are not shown: take their worst, median or best cell")
]
JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="also write everything as JSON; - for standard output"),
]
NormRisesOption = Annotated[
    bool | None,
    typer.Option(
        "--norm-rises/--no-norm-rises",
        help="note where the gradient norm rises by half; by default for logs with at most ten steps a point",
        show_default=False,
    ),
]
DegradedOption = Annotated[
    bool,
    typer.Option("--degraded", help="count degraded cells as over the edge: stable, but learned less than half"),
]
MetricOption = Annotated[
    str, typer.Option(help="second panel: final_loss, validation_loss, learned_share, onset_step, spike_score, ...")
]
LevelMetricOption = Annotated[
    str | None, typer.Option("--metric", help="a metric of the map, in place of the share of stable seeds")
]
LevelOption = Annotated[
    float | None, typer.Option("--level", help="the boundary is where the cell's median of --metric passes this")
]
StepColumnOption = Annotated[str | None, typer.Option("--step", metavar="NAME", help="the column of steps")]
LossColumnOption = Annotated[str | None, typer.Option("--loss", metavar="NAME", help="the column of training losses")]
NormColumnOption = Annotated[
    str | None, typer.Option("--grad-norm", metavar="NAME", help="the column of gradient norms")
]
PatternOption = Annotated[
    str | None,
    typer.Option("--pattern", metavar="REGEX", help="named groups, e.g. 'it (?P<step>\\d+) L=(?P<loss>\\S+)'"),
]
LogFormatOption = Annotated[str, typer.Option("--format", help="text, json, csv or tensorboard, if auto guesses wrong")]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="png, svg, pdf or csv; by default the ending of --output, or png")
]
FacetOption = Annotated[str | None, typer.Option(metavar="AXIS", help="one map for each value of this axis")]
FiguresOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="folder of the pictures; results/replay by default")
]
CellOption = Annotated[
    str | None,
    typer.Option("--cell", metavar="AXIS=VALUE,...", help="the most typical trial of this cell: beta2=0.999,eps=1e-8"),
]
LossOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="final_loss, validation_loss or best_loss; by default validation_loss where all trials have one, else "
        "final_loss",
    ),
]
AgainstOption = Annotated[
    str,
    typer.Option(
        "--against",
        metavar="margin|steps|METRIC",
        help="margin (high), steps to a target loss (low), or a metric of maps or of a custom trainer (low)",
    ),
]
MarginAlongOption = Annotated[
    str | None, typer.Option("--along", metavar="AXIS", help="margins along this axis alone; by default along all")
]
TargetOption = Annotated[
    float | None,
    typer.Option(
        "--target", metavar="LOSS", help="training loss of --against steps; by default one that all settings reach"
    ),
]
SlurmOption = Annotated[
    list[str],
    typer.Option(
        "--slurm",
        metavar="KEY=VALUE",
        help="for jobs: time=MINUTES, partition=..., account=...; cluster=local runs jobs on this machine",
    ),
]
NotifyTestOption = Annotated[
    bool, typer.Option("--notify-test", help="send a test message through notify.url_from, and train nothing")
]
PortOption = Annotated[
    int | None,
    typer.Option("--port", min=1, max=65535, help="port of the page on 127.0.0.1; a free one by default"),
]
