"""The command `quickfuse`."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

import quickfuse
from quickfuse import doctor as doctor_
from quickfuse.bench import breaks as breaks_
from quickfuse.bench import compile_time as compile_time_
from quickfuse.bench import export as export_
from quickfuse.bench import grid_models, grid_operators, render, traffic
from quickfuse.bench import growth as growth_
from quickfuse.bench import guards as guards_
from quickfuse.bench import operators as operators_
from quickfuse.bench import python_loop as python_loop_
from quickfuse.bench.figures import Figures
from quickfuse.bench.grid import Limits, Results, Task
from quickfuse.bench.grid import run as run_grid
from quickfuse.bench.growing_programs import SERIES
from quickfuse.bench.machine import describe_machine, show_machine
from quickfuse.bench.report import Report
from quickfuse.bench.run import run
from quickfuse.bench.variants import OURS, wrapper
from quickfuse.bench.workloads import (
    DTYPES,
    MODES,
    ModelWorkload,
    OptimizerWorkload,
    PointwiseWorkload,
    Workload,
    parse_shape,
)
from quickfuse.bench.zoo import MODELS
from quickfuse.cli_options import (
    Budget,
    ColdTimeout,
    Device,
    Dtype,
    Dtypes,
    Jobs,
    Json,
    JsonOfMany,
    OptimizerName,
    Params,
    Peers,
    Plot,
    Seconds,
    Shape,
    checked,
    console,
    found_device,
    known_names,
    peer_names,
    say,
)
from quickfuse.errors import QuickfuseError
from quickfuse.export import export as export_program
from quickfuse.export import load as load_program
from quickfuse.export import report as export_report

app = typer.Typer(no_args_is_help=True, add_completion=False, help="A just-in-time compiler for PyTorch programs.")
bench = typer.Typer(no_args_is_help=True, help="Measure quickfuse beside its peers on this machine.")
app.add_typer(bench, name="bench")



def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"quickfuse {quickfuse.__version__} (PyTorch {torch.__version__}, Python {platform.python_version()})")
        raise typer.Exit(0)


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """A just-in-time compiler for PyTorch programs."""


@bench.command()
def optimizer(
    params: Params = "10",
    shape: Shape = "1024x1024",
    optimizer: OptimizerName = "Adam",
    dtype: Dtype = "float32",
    device: Device = "auto",
    peers: Peers = "eager,fused,torch.compile,jax",
    seconds: Seconds = 5.0,
    cold_timeout: ColdTimeout = 300.0,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """A compiled optimizer step: time per step, first call, memory bandwidth."""
    workload = checked(lambda: OptimizerWorkload(params, parse_shape(shape), optimizer, dtype, found_device(device)))
    _compare(workload, peers, seconds, cold_timeout, json, plot)


@bench.command()
def pointwise(
    shape: Shape = "10x10",
    dtype: Dtype = "float32",
    device: Device = "auto",
    peers: Peers = "eager,torch.compile",
    seconds: Seconds = 5.0,
    cold_timeout: ColdTimeout = 300.0,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """sin(x) + cos(y) on small tensors: what a call costs."""
    workload = checked(lambda: PointwiseWorkload(parse_shape(shape), dtype, found_device(device)))
    _compare(workload, peers, seconds, cold_timeout, json, plot)


@bench.command()
def models(
    models: Annotated[str, typer.Option(help=f"all, or comma-separated from {', '.join(MODELS)}.")] = "all",
    modes: Annotated[str, typer.Option(help=f"Comma-separated from {', '.join(MODES)}.")] = "eval,train",
    device: Device = "cpu",
    peers: Peers = "eager,torch.compile",
    seconds: Annotated[float | None, typer.Option(help="How long each variant runs for its steady time.")] = None,
    cold_timeout: ColdTimeout = 300.0,
    folder: Annotated[Path | None, typer.Option("--json-folder", help="Write a result file for each here.")] = None,
    dtypes: Dtypes = "float32,bfloat16",
    variants: Annotated[str, typer.Option(help=f"With a GPU, comma-separated from {', '.join(grid_models.VARIANTS)}.")] = (
        ",".join(grid_models.VARIANTS)
    ),
    batch: Annotated[int, typer.Option(help="With a GPU: how many images or sequences.")] = grid_models.BATCH,
    pixels: Annotated[int, typer.Option(help="With a GPU: the side of an image.")] = grid_models.PIXELS,
    tokens: Annotated[int, typer.Option(help="With a GPU: the length of a sequence.")] = grid_models.TOKENS,
    jobs: Jobs = 1,
    budget: Budget = 0.0,
    json: JsonOfMany = None,
    grid: Annotated[bool, typer.Option("--grid", hidden=True)] = False,
) -> None:
    """Real models, evaluated and trained: time, first call, kernels and memory, side by side.

    On a GPU at its sizes (--batch, --pixels, --tokens), in two dtypes, each variant in a process of its own.
    """
    names = known_names(models, MODELS) if models != "all" else list(MODELS)
    where = checked(lambda: found_device(device))
    if where == "cuda" or grid:
        size = {"batch": batch, "pixels": pixels, "tokens": tokens}
        tasks = grid_models.tasks(
            names, known_names(modes, MODES), known_names(dtypes, DTYPES), known_names(variants, grid_models.VARIANTS),
            where, 0.5 if seconds is None else seconds, size,
        )  # fmt: skip
        return _measure_many(tasks, json, where, Limits(cold_timeout, budget, jobs), grid_models)
    reports = []
    for mode in known_names(modes, MODES):
        for name in names:
            report = _measured(ModelWorkload(name, mode, where), peers, 5.0 if seconds is None else seconds, cold_timeout)
            reports.append(report)
            if folder is not None:
                number = list(MODELS).index(name) + 1
                report.write(folder / f"models-{mode}-{where}-{number}-{name}.json")
    for line in render.geometric_means(reports):
        say(line)


@bench.command()
def operators(
    operators: Annotated[str, typer.Option(help="all, or comma-separated names of operators.")] = "all",
    peers: Annotated[str, typer.Option(help="Comma-separated from eager, torch.compile.")] = "eager,torch.compile",
    seconds: Annotated[float | None, typer.Option(help="How long each variant runs for its steady time.")] = None,
    device: Device = "cpu",
    cold_timeout: ColdTimeout = 300.0,
    dtypes: Dtypes = "float32,bfloat16",
    smaller: Annotated[int, typer.Option(min=1, help="With a GPU: divide all sizes by this.")] = 1,
    jobs: Jobs = 1,
    budget: Budget = 0.0,
    json: JsonOfMany = None,
    grid: Annotated[bool, typer.Option("--grid", hidden=True)] = False,
) -> None:
    """Single operators at several sizes, forward and backward, side by side.

    On a GPU at its sizes, in two dtypes, with the share of a copy's bandwidth.
    """
    where = checked(lambda: found_device(device))
    known: Iterable[str] = grid_operators.OPERATORS if where == "cuda" or grid else operators_.OPERATORS
    names = known_names(operators, known) if operators != "all" else list(known)
    wanted = [*known_names(peers, ("eager", "torch.compile")), OURS]
    if where == "cuda" or grid:
        tasks = grid_operators.tasks(names, known_names(dtypes, DTYPES), wanted, where, seconds or 0.1, smaller)
        return _measure_many(tasks, json, where, Limits(cold_timeout, budget, jobs), grid_operators)
    with _progress_bar() as progress:
        result = operators_.run(names, {name: wrapper(name) for name in wanted}, seconds or 0.5, progress)
    say(show_machine(result.machine))
    console.print(result.to_table())
    for row in result.rows:
        for variant, reason in row.failed.items():
            say(f"{variant}: {row.operator}, {row.shape}: {reason}")
    say(result.summary())
    if json is not None:
        result.write(json)


def _measure_many(tasks: list[Task], json: Path | None, device: str, limits: Limits, suite: Any) -> None:
    """Run the tasks of a suite (`grid_models`, `grid_operators`) that have no result in the file yet, and show them."""
    results = Results.of_file(json, device)
    say(show_machine(results.about))
    done = run_grid(tasks, results, limits, lambda task, row: say(suite.shown(task, row)))
    rows = [row for row in results.rows if row["task"] in tasks]
    for line in [*suite.table(rows), *suite.summary(rows)]:
        say(line)
    if not done:
        say("There was no time for the rest; the same command goes on with it.")


@bench.command()
def kernels(
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "gpt",
    mode: Annotated[str, typer.Option(help=f"One of {', '.join(MODES)}.")] = "train",
    dtype: Dtype = "bfloat16",
    device: Annotated[str, typer.Option(help="cuda: measured; cpu: the schedule that a GPU would get.")] = "auto",
    batch: Annotated[int, typer.Option(help="How many images or sequences.")] = grid_models.BATCH,
    pixels: Annotated[int, typer.Option(help="The side of an image.")] = grid_models.PIXELS,
    tokens: Annotated[int, typer.Option(help="The length of a sequence.")] = grid_models.TOKENS,
    most: Annotated[int, typer.Option(help="How many kernels of each graph are shown.")] = 40,
    bodies: Annotated[bool, typer.Option("--bodies", help="Show what each kernel does.")] = False,
) -> None:
    """The kernels of a model on a GPU: launches, bytes, the least time that these take, and the time that they do."""
    where = checked(lambda: found_device(device))
    workload = checked(lambda: ModelWorkload(model, mode, where, dtype, batch, pixels, tokens))
    function, args = traffic.function_of(workload)
    if where == "cuda":
        found = traffic.measured(function, args, mode == "train")
        titles = [*(f"graph {number}" for number in range(len(found) - 1)), "PyTorch's kernels"]
    else:
        found = [traffic.kernel_work(schedule) for schedule in traffic.on_gpu(function, *args)]
        titles = [f"graph {number}" for number in range(len(found))]
    for works, title in zip(found, titles, strict=True):
        for line in traffic.lines_of(works, f"{workload.title}, {title}", most, bodies):
            say(line)


@bench.command("compile-time")
def compile_time(
    params: Params = "10",
    shape: Shape = "1024x1024",
    optimizer: OptimizerName = "Adam",
    dtype: Dtype = "float32",
    device: Device = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="How many fresh processes; medians are shown.")] = 3,
    cold_timeout: ColdTimeout = 300.0,
    json: Json = None,
    growth: Annotated[bool, typer.Option("--growth", help="How compile time grows with the program instead.")] = False,
    series: Annotated[str, typer.Option(help=f"With --growth: all, or comma-separated from {', '.join(SERIES)}.")] = "all",
    largest: Annotated[int, typer.Option(min=growth_.SHORTEST, help="With --growth: the longest program.")] = 5000,
    limit: Annotated[float, typer.Option(help="With --growth: seconds after which a series is not continued.")] = 1200.0,
) -> None:
    """Where the first call of a compiled optimizer step spends its time, or how that grows with several programs."""
    if growth:
        return _compile_time_growth(series, largest, limit, json)
    workload = checked(lambda: OptimizerWorkload(params, parse_shape(shape), optimizer, dtype, found_device(device)))
    with _progress_bar() as progress:
        result = compile_time_.measure(workload, repeats=repeats, timeout=cold_timeout, progress=progress)
    if result.failure:
        say(f"{OURS}: failed, {result.failure}")
        raise typer.Exit(1)
    say(show_machine(result.machine))
    console.print(result.to_table())
    if json is not None:
        result.write(json)


def _compile_time_growth(series: str, largest: int, limit: float, json: Path | None) -> None:
    names = known_names(series, SERIES) if series != "all" else list(SERIES)

    def show(found: growth_.Growth, name: str) -> None:
        points = found.series[name]
        console.print(found.to_table(name))
        for reason in dict.fromkeys(reason for point in points for reason in point.breaks):
            say(f"{name}: not one graph: {reason}")
        if points[-1].failure or points[-1].length < largest:
            say(f"{name}: stopped at {points[-1].length}, {points[-1].failure or f'{points[-1].seconds:.0f} s'}")

    say(show_machine(describe_machine("cpu")))
    with _progress_bar() as progress:
        result = growth_.measure(names, largest, limit, progress, show)
    if json is not None:
        result.write(json)


@bench.command()
def guards(
    layers: Annotated[int, typer.Option(min=1, help="How many linear layers the model has.")] = 100,
    params: Annotated[int, typer.Option(min=1, help="How many parameters the optimizer has.")] = 200,
    seconds: Annotated[float, typer.Option(help="How long all of it runs.")] = 10.0,
    json: Json = None,
) -> None:
    """What finding out whether compiled code may be used costs: a small function, models, an optimizer step."""
    with _progress_bar() as progress:
        found = guards_.measure(layers=layers, params=params, seconds=seconds, progress=progress)
    _show_figures(found, json)


@bench.command()
def breaks(
    layers: Annotated[int, typer.Option(min=1, help="How many layers there are, with a break in each.")] = breaks_.LAYERS,
    seconds: Seconds = 3.0,
    peer: Annotated[bool, typer.Option(help="Measure torch.compile, too.")] = True,
    json: Json = None,
) -> None:
    """What a graph break costs beyond the Python that it is there for, beside torch.compile."""
    with _progress_bar() as progress:
        found = breaks_.measure(layers=layers, seconds=seconds, peer=peer, progress=progress)
    _show_figures(found, json)
    for figure in found.figures:
        beside = f", torch.compile {figure.notes['torch_compile']:.3g} us" if peer else ""
        say(f"{figure.name}: {figure.notes['graphs']:.0f} graphs{beside}")


@bench.command("python-loop")
def python_loop(
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of each loop.")] = python_loop_.ITERATIONS,
    seconds: Seconds = 3.0,
    json: Json = None,
) -> None:
    """Loops of plain Python in compiled functions, beside the same without: never slower by more than a constant."""
    with _progress_bar() as progress:
        found = python_loop_.measure(iterations=iterations, seconds=seconds, progress=progress)
    _show_figures(found, json)


@bench.command("export")
def bench_export(
    models: Annotated[str, typer.Option(help="all, or comma-separated names of models.")] = "all",
    peer: Annotated[bool, typer.Option(help="Measure torch.export, too.")] = True,
    json: Json = None,
) -> None:
    """Seconds to export a model, beside torch.export, and what each accepts."""
    names = known_names(models, export_.MODELS) if models != "all" else list(export_.MODELS)
    with _progress_bar() as progress:
        found = export_.measure(names, peer=peer, progress=progress)
    say(show_machine(found.machine))
    console.print(found.to_table())
    for line in found.notes():
        say(line)
    if json is not None:
        found.write(json)


@app.command()
def export(
    target: Annotated[str, typer.Argument(metavar="MODULE:CALLABLE", help="A function, module, or class of modules.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    example: Annotated[
        list[str] | None, typer.Option(help="An argument: float32[4,3,128,128], a Python literal, or name=value.")
    ] = None,
    evaluation: Annotated[bool, typer.Option("--eval/--train", help="The mode of a module.")] = True,
    strict: Annotated[bool, typer.Option(help="Side effects on Python objects are an error.")] = True,
) -> None:
    """Export a program to a file that can be loaded without its source."""
    found = checked(lambda: export_report.callable_named(target))
    args, kwargs = checked(lambda: export_report.examples(example or []))
    if isinstance(found, torch.nn.Module):
        found.train(not evaluation)
    try:
        exported = export_program(found, args, kwargs, strict=strict)
        exported.save(output)
    except (QuickfuseError, OSError, TypeError) as error:
        say(f"{type(error).__name__}: {error}")
        raise typer.Exit(1) from None
    say(f"{exported!r} is in {output}, {output.stat().st_size / 2**20:.1f} MiB")


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A file of an exported program.")],
    namespace: Annotated[list[str] | None, typer.Option(help="A library whose operators may be in it.")] = None,
    graph: Annotated[bool, typer.Option("--graph", help="Show the program as code.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Show all that it was specialised on.")] = False,
) -> None:
    """Show what is in an exported program: signature, operators, sizes, assumptions."""
    try:
        exported = load_program(path, namespaces=namespace or ())
    except (QuickfuseError, OSError) as error:
        say(f"{type(error).__name__}: {error}")
        raise typer.Exit(1) from None
    for line in export_report.lines(exported, all_):
        say(line)
    if graph:
        say(exported.print_readable(print_output=False))


@app.command()
def doctor() -> None:
    """Say what was found on this machine, and what that means for quickfuse."""
    findings = doctor_.examine()
    marks = {"good": ("ok", "green"), "limited": ("--", "yellow"), "broken": ("!!", "red")}
    for finding in findings:
        line = Text.assemble(marks[finding.level], f" {finding.name:<12} ", (finding.found, "bold"), ": ", finding.meaning)
        console.print(line, soft_wrap=True)
    if any(finding.level == "broken" for finding in findings):
        raise typer.Exit(1)


def _measured(workload: Workload, peers: str, seconds: float, cold_timeout: float) -> Report:
    """Run a workload with quickfuse and its peers, and show what came out."""
    names = [*checked(lambda: peer_names(peers)), OURS]
    with _progress_bar() as progress:
        report = run(workload, names, seconds=seconds, cold_timeout=cold_timeout, progress=progress)
    _show(report)
    return report


def _compare(
    workload: Workload, peers: str, seconds: float, cold_timeout: float, json: Path | None, plot: Path | None
) -> None:
    report = _measured(workload, peers, seconds, cold_timeout)
    if json is not None:
        report.write(json)
    if plot is not None:
        _draw(report, plot)
    ours = report.get(OURS)
    if ours is None or not ours.rounds_us:
        raise typer.Exit(1)


def _show(report: Report) -> None:
    say(show_machine(report.machine))
    console.print(render.to_table(report))
    for line in render.notes(report):
        say(line)
    for line in render.summary_lines(report):
        say(line)


def _show_figures(found: Figures, json: Path | None) -> None:
    say(show_machine(found.machine))
    console.print(found.to_table())
    if json is not None:
        found.write(json)


def _draw(report: Report, path: Path) -> None:
    try:
        from quickfuse.bench.plot import plot

        plot([report], path)
    except ModuleNotFoundError as error:
        say(f"no plot: {error.name} is not installed (pip install matplotlib)")


@contextmanager
def _progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A progress bar on standard error, gone when done; nothing where standard error is no terminal."""
    columns: list[Any] = [SpinnerColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}")]
    terminal = Console(stderr=True)
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda what, done: bar.update(task, description=what, completed=done)


if __name__ == "__main__":
    app()
