"""The command line, ``placer …``.

Each command turns its options into settings, runs one flow or one pure function, and
prints the answer. The modules that load TensorFlow, MLflow or Prefect are imported by the
commands that need them, so that ``placer simulate`` and ``--help`` answer at once.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from flows.arguments import JsonFile, MaxGroups, Verbose, checked, start
from flows.benchmark_command import benchmark
from flows.console import OUT, fail, show_messages
from flows.run_commands import compare, resume, runs, trials
from placer.config import (
    LOCAL,
    EvaluateSettings,
    FidelitySettings,
    GroupSettings,
    MeasureFidelitySettings,
    NetworkName,
    OptimizeSettings,
    ProfileSettings,
    TrainerName,
    TrainingEnvironment,
    TrainSettings,
    WorkloadName,
    WorkloadSize,
)
from placer.errors import InvalidValueError, PlacerError, UnknownNameError
from placer.files import load_graph_file, load_topology, packaged_topologies
from placer.files.hosts import load_hosts

app = typer.Typer(
    help="Learns on which device each op of a TensorFlow training step should run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Workload = Annotated[
    str, typer.Option(help=f"Built-in training step: {', '.join(get_args(WorkloadName))}.")
]
Size = Annotated[
    str, typer.Option(help="'small' steps in about a second here; 'paper' is the paper's.")
]
Change = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change one size, e.g. batch_size=32."),
]
GraphFile = Annotated[
    Path | None,
    typer.Option("--graph", help="A profile or graph file (JSON), instead of --workload."),
]
TopologyName = Annotated[
    str | None,
    typer.Option(
        "--topology",
        help="'local' (this machine), a packaged name (see `placer topologies`) or a TOML file."
        " Default: the graph file's own, otherwise local.",
    ),
]
ClusterFile = Annotated[
    Path | None,
    typer.Option(
        help="Hosts file (TOML) of a cluster to measure on. Default: this machine; see"
        " `placer worker`."
    ),
]
Where = Annotated[
    str,
    typer.Option(
        "--environment",
        help="Where sampled placements are measured: 'simulated' (milliseconds each), 'real' (on"
        " this machine's devices, as in the paper: seconds to minutes each) or 'staged' (in the"
        " simulation first, then on the real devices).",
    ),
]
Trials = Annotated[
    int,
    typer.Option(
        help="Placements to sample and measure; of a staged training, those in the simulation."
    ),
]
RealTrials = Annotated[
    int, typer.Option(help="Staged training: placements to measure on the real devices at the end.")
]
Seed = Annotated[int, typer.Option(help="All randomness derives from it.")]
Batch = Annotated[int, typer.Option("--batch-size", help="Placements for each policy update.")]
TrainerOption = Annotated[
    str,
    typer.Option(
        "--trainer",
        help="How the policy learns: 'reinforce' (as in the paper), 'ppo' or 'cross-entropy'.",
    ),
]
NetworkOption = Annotated[
    str,
    typer.Option(
        "--network",
        help="The policy: 'seq2seq' (the paper's), 'hierarchical', or 'graph' (pretrained).",
    ),
]
InFlight = Annotated[
    int,
    typer.Option(help="Batches proposed before the first is learned from; above 1: asynchronous."),
]
WarmStart = Annotated[
    str | None,
    typer.Option(help="Heuristic that the policy imitates first, or 'best heuristic'."),
]
WarmStartRun = Annotated[
    str | None, typer.Option(help="Run id of an earlier training, whose policy is the start.")
]
Rounds = Annotated[int, typer.Option(help="Timed steps of each placement on real devices.")]
Learned = Annotated[int, typer.Option("--learned", help="Learned placements to judge at most.")]
SearchTrials = Annotated[
    int,
    typer.Option(help="Simulated evaluations of the search that is judged as well; 0: no search."),
]

_TRAIN = TrainSettings()
_EVALUATE = EvaluateSettings()
_GROUP = GroupSettings()
_FIDELITY = FidelitySettings()


@app.command()
def optimize(  # noqa: PLR0913 - options of the main job
    *,
    workload: Workload = "rnnlm",
    size: Size = "small",
    change: Change = None,
    graph: GraphFile = None,
    topology: TopologyName = None,
    cluster: ClusterFile = None,
    max_groups: MaxGroups = _GROUP.max_groups,
    environment: Where = _TRAIN.environment,
    trials: Trials = _TRAIN.trials,
    real_trials: RealTrials = _TRAIN.real_trials,
    seed: Seed = _TRAIN.seed,
    batch_size: Batch = _TRAIN.batch_size,
    network: NetworkOption = _TRAIN.policy.network,
    trainer: TrainerOption = _TRAIN.trainer,
    in_flight: InFlight = _TRAIN.in_flight,
    warm_start: WarmStart = None,
    warm_start_run: WarmStartRun = None,
    learned: Learned = _EVALUATE.num_learned,
    search_trials: SearchTrials = _EVALUATE.search_trials,
    rounds: Rounds = _EVALUATE.rounds,
    out: Annotated[Path | None, typer.Option(help="Also write the placement here.")] = None,
    json_file: JsonFile = None,
    verbose: Verbose = False,
) -> None:
    """Find the best placement: profile, group, train, evaluate."""
    settings = OptimizeSettings(
        profile=_profile_settings(workload, size, change, graph, topology, cluster),
        group=checked(GroupSettings, max_groups=max_groups),
        train=_train_settings(
            environment=environment,
            trials=trials,
            real_trials=real_trials,
            seed=seed,
            batch_size=batch_size,
            network=network,
            trainer=trainer,
            in_flight=in_flight,
            warm_start=warm_start,
            warm_start_run=warm_start_run,
        ),
        evaluate=_evaluate_settings(learned, search_trials, rounds),
    )
    start(verbose)
    from flows.optimize import optimize as flow
    from flows.results import show_evaluation

    show_evaluation(flow(settings), json_file=json_file, placement_file=out)


@app.command()
def profile(  # noqa: PLR0913 - options of one stage
    *,
    workload: Workload = "rnnlm",
    size: Size = "small",
    change: Change = None,
    graph: GraphFile = None,
    topology: TopologyName = None,
    cluster: ClusterFile = None,
    json_file: JsonFile = None,
    verbose: Verbose = False,
) -> None:
    """Capture a graph and find what each op costs on the devices."""
    settings = _profile_settings(workload, size, change, graph, topology, cluster)
    start(verbose)
    from flows.profile import profile as flow
    from flows.results import show_profile

    show_profile(flow(settings), json_file=json_file)


@app.command()
def group(
    *,
    profile_run: Annotated[str, typer.Option("--profile", help="Run id of a profile.")],
    max_groups: MaxGroups = _GROUP.max_groups,
    json_file: JsonFile = None,
    verbose: Verbose = False,
) -> None:
    """Group the ops of a profile."""
    settings = checked(GroupSettings, max_groups=max_groups)
    start(verbose)
    from flows.group import group as flow
    from flows.results import show_grouping

    show_grouping(flow(profile_run, settings), json_file=json_file)


@app.command()
def train(  # noqa: PLR0913 - options of a training
    *,
    grouping_run: Annotated[str, typer.Option("--grouping", help="Run id of a grouping.")],
    environment: Where = _TRAIN.environment,
    trials: Trials = _TRAIN.trials,
    real_trials: RealTrials = _TRAIN.real_trials,
    seed: Seed = _TRAIN.seed,
    batch_size: Batch = _TRAIN.batch_size,
    network: NetworkOption = _TRAIN.policy.network,
    trainer: TrainerOption = _TRAIN.trainer,
    in_flight: InFlight = _TRAIN.in_flight,
    warm_start: WarmStart = None,
    warm_start_run: WarmStartRun = None,
    json_file: JsonFile = None,
    verbose: Verbose = False,
) -> None:
    """Train the policy on a grouped profile: in the simulation, on the real devices, or both."""
    settings = _train_settings(
        environment=environment,
        trials=trials,
        real_trials=real_trials,
        seed=seed,
        batch_size=batch_size,
        network=network,
        trainer=trainer,
        in_flight=in_flight,
        warm_start=warm_start,
        warm_start_run=warm_start_run,
    )
    start(verbose)
    from flows.results import show_training
    from flows.train import train as flow

    show_training(flow(grouping_run, settings), json_file=json_file)


@app.command()
def evaluate(
    *,
    training_run: Annotated[str, typer.Option("--training", help="Run id of a training.")],
    learned: Learned = _EVALUATE.num_learned,
    search_trials: SearchTrials = _EVALUATE.search_trials,
    rounds: Rounds = _EVALUATE.rounds,
    out: Annotated[Path | None, typer.Option(help="Also write the placement here.")] = None,
    json_file: JsonFile = None,
    verbose: Verbose = False,
) -> None:
    """Judge a training's placements beside the heuristics; on real devices where they are."""
    settings = _evaluate_settings(learned, search_trials, rounds)
    start(verbose)
    from flows.evaluate import evaluate as flow
    from flows.results import show_evaluation

    show_evaluation(flow(training_run, settings), json_file=json_file, placement_file=out)


app.command()(runs)
app.command()(resume)
app.command()(compare)
app.command()(trials)


@app.command()
def fidelity(  # noqa: PLR0913 - options of three stages
    *,
    workload: Workload = "rnnlm",
    size: Size = "small",
    change: Change = None,
    topology: TopologyName = None,
    cluster: ClusterFile = None,
    max_groups: MaxGroups = _GROUP.max_groups,
    placements: Annotated[
        int, typer.Option(help="Placements to measure, from one device to random ones.")
    ] = _FIDELITY.count,
    rounds: Annotated[
        int, typer.Option(help="Timed steps of each placement at most.")
    ] = _FIDELITY.measurement.max_timed_steps,
    seed: Seed = _FIDELITY.seed,
    json_file: JsonFile = None,
    verbose: Verbose = False,
) -> None:
    """Measure how well the simulation predicts step times on the real devices."""
    measurement = _FIDELITY.measurement.model_dump() | {"max_timed_steps": rounds}
    settings = MeasureFidelitySettings(
        profile=_profile_settings(workload, size, change, None, topology, cluster),
        group=checked(GroupSettings, max_groups=max_groups),
        fidelity=checked(FidelitySettings, count=placements, seed=seed, measurement=measurement),
    )
    start(verbose)
    from flows.fidelity import measure_fidelity as flow
    from flows.results import show_fidelity

    show_fidelity(flow(settings), json_file=json_file)


@app.command()
def simulate(
    *,
    graph: Annotated[Path, typer.Option(help="A profile or graph file (JSON).")],
    placement: Annotated[Path, typer.Option(help="A placement file (JSON).")],
    topology: TopologyName = None,
    json_file: JsonFile = None,
) -> None:
    """Simulate one step of a placed graph: makespan, outcome, busy time, peak memory."""
    from flows.simulation import simulate_files

    simulate_files(graph, topology, placement, json_file=json_file)


@app.command()
def search(  # noqa: PLR0913 - a graph, a method, and two files
    *,
    graph: Annotated[Path, typer.Option(help="A profile or graph file (JSON).")],
    topology: TopologyName = None,
    max_groups: MaxGroups = _GROUP.max_groups,
    method: Annotated[
        str,
        typer.Option(
            help="'auto' (everything together), 'policy', 'annealing', 'hill-climbing', 'genetic',"
            " 'random', or a heuristic such as 'metis'."
        ),
    ] = "auto",
    trials: Annotated[int, typer.Option(help="Placements to evaluate.")] = 2000,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the placement here.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Search for the placement of a graph file with the least simulated makespan."""
    from flows.search import search_files

    search_files(
        graph,
        topology,
        method=method,
        num_trials=trials,
        seed=seed,
        max_groups=max_groups,
        placement_file=out,
        json_file=json_file,
    )


app.command()(benchmark)


@app.command()
def devices(
    *,
    cluster: ClusterFile = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the topology (TOML) here, for --topology.")
    ] = None,
    json_file: JsonFile = None,
    verbose: Verbose = False,
) -> None:
    """Find the devices of this machine or a cluster, and measure the links between them."""
    start(verbose)
    from flows.devices import show_devices

    show_devices(cluster, topology_file=out, json_file=json_file)


@app.command()
def worker(
    *,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the owner of a cluster reaches this host; port 0 lets the system choose."
            " Whoever reaches it can run any graph here: trust that network.",
        ),
    ] = "127.0.0.1:0",
    core: Annotated[
        int | None, typer.Option(help="Pin the worker to this core. Default: the whole host.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Lend this host to the owner of a cluster, one at a time; ends with Ctrl-C."""
    show_messages(verbose=verbose)
    from placer.files.hosts import Address
    from profiling.agent import serve_host

    def announce(address: Address) -> None:
        OUT.print(f"listening on {address}  (Ctrl-C ends it)")

    serve_host(Address.parse(listen), core=core, announce=announce)


@app.command()
def topologies() -> None:
    """List the packaged topologies."""
    for name in packaged_topologies():
        devices = ", ".join(f"{d.name} ({d.type})" for d in load_topology(name).devices)
        OUT.print(f"{name:<20} {devices}", soft_wrap=True)


@app.command()
def ui(
    *,
    port: Annotated[int, typer.Option(help="Port on loopback; 0 lets the system choose.")] = 0,
    verbose: Verbose = False,
) -> None:
    """Open the page of all trainings on this machine; ends with Ctrl-C."""
    start(verbose)
    from flows.ui import serve_page
    from placer.mlflow_store import open_store

    store = open_store()
    store.mark_interrupted()
    with serve_page(store, port) as page:
        OUT.print(f"MLflow page: {page.url}  (Ctrl-C ends it)")
        page.wait()


@app.command()
def serve(*, verbose: Verbose = False) -> None:
    """Offer all flows on the Prefect server at PREFECT_API_URL, and run what is triggered there."""
    start(verbose)
    from flows.serving import serve_flows

    serve_flows()


class _Terminated(SystemExit):
    """Somebody sent SIGTERM."""


def main() -> None:
    """Run the command line; bad input is one line on stderr and exit code 2.

    On SIGTERM the command unwinds as on Ctrl-C, so that a training saves its checkpoint and
    whatever was started for it is ended.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(prog_name="placer")
    except PlacerError as error:
        fail(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        fail("interrupted; what was finished is kept")
        sys.exit(128 + signal.SIGINT)
    except _Terminated:
        fail("terminated; what was finished is kept")
        sys.exit(128 + signal.SIGTERM)


def _terminate(*_: object) -> None:
    raise _Terminated


def _profile_settings(
    workload: str,
    size: str,
    changes: Sequence[str] | None,
    graph: Path | None,
    topology: str | None,
    cluster: Path | None,
) -> ProfileSettings:
    _check_name("workload", workload, WorkloadName)
    _check_name("size", size, WorkloadSize)
    # Bad files and names are told at once, before any server or worker starts.
    if graph is not None:
        load_graph_file(graph)
    if topology not in (None, LOCAL):
        load_topology(topology)
    if cluster is not None:
        load_hosts(cluster)
    sizes = dict(_size(change) for change in changes or ())
    return checked(
        ProfileSettings,
        workload=workload,
        size=size,
        sizes=sizes,
        graph=graph,
        topology=topology,
        cluster=cluster,
    )


def _evaluate_settings(learned: int, search_trials: int, rounds: int) -> EvaluateSettings:
    return checked(
        EvaluateSettings, num_learned=learned, search_trials=search_trials, rounds=rounds
    )


def _train_settings(
    *, environment: str, network: str, trainer: str, **others: Any
) -> TrainSettings:
    _check_name("environment", environment, TrainingEnvironment)
    _check_name("network", network, NetworkName)
    _check_name("trainer", trainer, TrainerName)
    return checked(
        TrainSettings,
        environment=environment,
        trainer=trainer,
        policy={"network": network},
        **others,
    )


def _check_name(what: str, name: str, known: Any) -> None:
    if name not in get_args(known):
        raise UnknownNameError(what, name, get_args(known))


def _size(change: str) -> tuple[str, int]:
    name, _, value = change.partition("=")
    if not value.isdecimal():
        raise InvalidValueError(f"--set takes NAME=WHOLE_NUMBER, got {change!r}")
    return name, int(value)
