"""The settings of every stage, described and checked: the parameters of the flows.

Each field's description is what a person reads in a form or in ``--help``. A default that
comes from the paper or its authors' code says so.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from placer.group_ops import GroupingConfig

WorkloadName = Literal["rnnlm", "nmt", "inception_v3", "resnet50", "transformer"]
WorkloadSize = Literal["small", "paper"]
TrainingEnvironment = Literal["simulated", "real", "staged"]
TrainerName = Literal["reinforce", "ppo", "cross-entropy"]
NetworkName = Literal["seq2seq", "hierarchical", "graph"]

LOCAL = "local"
"""The topology of this very machine: measured, not described."""


class Settings(BaseModel):
    """Frozen, and strict about names: an unknown setting is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ProfileSettings(Settings):
    """Which graph, on which devices."""

    workload: WorkloadName = Field("rnnlm", description="Built-in training step")
    size: WorkloadSize = Field("small", description="Small steps take about a second here")
    sizes: dict[str, int] = Field(
        default_factory=dict, description="Single sizes to change, such as batch_size: 32"
    )
    graph: Path | None = Field(
        None, description="A profile or graph file (JSON), instead of a built-in workload"
    )
    topology: str | None = Field(
        None,
        description="'local' for this machine's devices, a packaged name, or a TOML file;"
        " default: the graph file's own, otherwise local",
    )
    cluster: Path | None = Field(
        None,
        description="Hosts file (TOML) of a cluster whose devices are meant by 'local', instead"
        " of this machine's",
    )
    trace_steps: int = Field(10, ge=1, le=1000, description="Traced steps behind each op's time")
    calibration_placements: int = Field(
        8,
        ge=0,
        le=1000,
        description="Placements measured to calibrate the links between this machine's devices,"
        " some seconds each; 0 leaves links as they are between idle devices",
    )

    @model_validator(mode="after")
    def _check_cluster(self) -> Self:
        if self.cluster is not None and not self.is_traced_here:
            raise ValueError(
                "a cluster's devices are measured: it goes with a built-in workload and topology"
                f" 'local', got cluster {str(self.cluster)!r} with"
                f" {'graph' if self.graph else 'topology'} {str(self.graph or self.topology)!r}"
            )
        return self

    @property
    def is_traced_here(self) -> bool:
        """True if the workload's ops will be timed on the devices of this machine or cluster."""
        return self.graph is None and self.topology in (None, LOCAL)

    @property
    def graph_name(self) -> str:
        """How people call the graph."""
        if self.graph is not None:
            return self.graph.stem
        changed = "".join(f"-{name}={value}" for name, value in sorted(self.sizes.items()))
        return f"{self.workload}-{self.size}{changed}"

    @property
    def topology_name(self) -> str:
        """How people call the topology."""
        if self.topology is None:
            return LOCAL if self.graph is None else "its own topology"
        return Path(self.topology).stem if self.topology.endswith(".toml") else self.topology


class GroupSettings(Settings):
    """How ops are grouped."""

    max_groups: int = Field(
        GroupingConfig().max_groups,
        ge=1,
        le=4096,
        description="Groups at most; METIS merges those beyond (the authors' later"
        " controller: 256)",
    )


class PolicySettings(Settings):
    """The policy network. ``seq2seq`` with ``align_decoder`` off and no prior is the paper's."""

    network: NetworkName = Field(
        "seq2seq",
        description="'seq2seq' as in the paper; 'hierarchical', a learned grouper and a placer"
        " (Mirhoseini et al., 2018), which groups the groups again, so let them be many:"
        " max_groups of 1,000 or more; or 'graph', trained before on other graphs, which has"
        " sizes and rates of its own and takes none of the settings below",
    )
    hidden_size: int = Field(
        128, ge=4, le=4096, description="Units of each LSTM (the authors' later controller: 512)"
    )
    attention_size: int = Field(64, ge=4, le=4096, description="Units of the attention")
    embedding_size: int = Field(32, ge=2, le=1024, description="Units of type and device")
    logit_bound: float = Field(5.0, gt=0, description="C of C·tanh(x/T)")
    logit_temperature: float = Field(10.0, gt=0, description="T of C·tanh(x/T)")
    entropy_bonus: float = Field(0.05, ge=0, description="Weight of the entropy in the objective")
    learning_rate: float = Field(0.003, gt=0, le=1, description="Of Adam")
    gradient_clip_norm: float = Field(1.0, gt=0, description="Bound of the gradient's norm")
    align_decoder: bool = Field(
        True, description="seq2seq: feed each decoder step its own group's encoding as well"
    )
    unit_groups: int = Field(
        48, ge=1, le=1024, description="hierarchical: groups that the placer places at most"
    )
    strays: float = Field(
        4.0,
        gt=0,
        description="hierarchical: groups expected outside their first group of groups at first",
    )
    locality_prior: float = Field(
        2.0, ge=0, description="Initial logit in favour of the devices of neighbouring groups"
    )
    jit_compile: bool = Field(True, description="Compile with XLA: some seconds once, then faster")


class MeasurementSettings(Settings):
    """How a placement is timed on the real devices, by default while the policy is trained.

    A policy needs less of each placement than an evaluation does: the noise of single
    measurements averages out over the batches that it learns from.
    """

    max_timed_steps: int = Field(
        10, ge=6, le=10_000, description="Timed steps of a placement at most"
    )
    relative_half_width: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Fewer steps suffice once the step time is known to this share of itself",
    )
    budget_s: float = Field(
        10.0, gt=0, le=86_400, description="Or once the timed steps took so many seconds"
    )
    timeout_factor: float = Field(
        10.0,
        gt=1,
        le=1000,
        description="A step is given up once it takes this many times the fastest one seen",
    )


class PpoSettings(Settings):
    """Several updates by each batch, as long as the policy stays near the one that drew it."""

    clip: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="How far the ratio of a mean choice may leave 1 and still push (Schulman et"
        " al., 2017: 0.2)",
    )
    epochs: int = Field(
        4, ge=1, le=100, description="Updates by each batch at most (Schulman et al.: 3 to 15)"
    )
    largest_divergence: float = Field(
        0.02, gt=0, description="No further one once a choice has moved by so many nats"
    )


class CrossEntropySettings(Settings):
    """Imitation of the fastest placements, of each batch and of the whole training."""

    elite_share: float = Field(
        0.25, gt=0, le=1, description="Share of a batch that is imitated (de Boer et al., 2005)"
    )
    num_remembered: int = Field(
        4,
        ge=0,
        le=1024,
        description="Fastest placements so far that are imitated too (Oh et al., 2018)",
    )
    imitation: float = Field(
        1.0, ge=0, description="Their weight, relative to the elite of the batch"
    )


class TrainSettings(Settings):
    """How the policy is trained."""

    environment: TrainingEnvironment = Field(
        "simulated",
        description="Where sampled placements are measured: 'simulated', milliseconds each;"
        " 'real', on this machine's devices as in the paper, seconds to minutes each;"
        " 'staged', first in the simulation, then on the real devices",
    )
    trials: int = Field(
        2000,
        ge=1,
        le=10_000_000,
        description="Placements to sample and measure; of a staged training those in the"
        " simulation, rounded up to whole batches",
    )
    real_trials: int = Field(
        64,
        ge=1,
        le=1_000_000,
        description="Staged only: placements to measure on the real devices after that",
    )
    seed: int = Field(0, ge=0, lt=2**31, description="All randomness derives from it")
    batch_size: int = Field(16, ge=1, le=4096, description="Placements for each policy update")
    baseline_decay: float = Field(
        0.9, ge=0, lt=1, description="Of the moving average of rewards (the authors': 0.9)"
    )
    failing_step_time_s: float | None = Field(
        None,
        gt=0,
        description="Step time that stands for a placement that cannot run; default: twice the"
        " work of one step on the slowest device",
    )
    runnable_only_after: int = Field(
        1000,
        ge=0,
        description="Updates after which failed placements teach nothing (the authors': 1,000)",
    )
    measurement: MeasurementSettings = MeasurementSettings()
    checkpoint_every: int = Field(25, ge=1, description="Updates between checkpoints")
    trainer: TrainerName = Field(
        "reinforce",
        description="How the policy learns: 'reinforce' as in the paper, 'ppo' (Schulman et al.,"
        " 2017), or 'cross-entropy' with self-imitation (de Boer et al., 2005; Oh et al., 2018)",
    )
    in_flight: int = Field(
        1,
        ge=1,
        le=64,
        description="Batches that are proposed before the first of them is learned from; more"
        " than 1 measures and learns at the same time (the paper: asynchronous controllers)",
    )
    more_clusters: tuple[Path, ...] = Field(
        (),
        description="Hosts files (TOML) of further clusters with the profile's devices; real"
        " trials are measured on all of them at the same time",
    )
    warm_start: str | None = Field(
        None,
        description="Heuristic whose placement the policy imitates before its first trial, or"
        " 'best heuristic'",
    )
    warm_start_updates: int = Field(
        300, ge=1, le=100_000, description="Updates by which it is imitated at most"
    )
    warm_start_run: str | None = Field(
        None, description="Id of an earlier training, whose policy is the start"
    )
    ppo: PpoSettings = PpoSettings()
    cross_entropy: CrossEntropySettings = CrossEntropySettings()
    policy: PolicySettings = PolicySettings()

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if self.warm_start is not None and self.warm_start_run is not None:
            raise ValueError(
                f"a training starts from one thing, got warm_start {self.warm_start!r} and"
                f" warm_start_run {self.warm_start_run!r}"
            )
        if self.more_clusters and self.environment == "simulated":
            raise ValueError(
                "more_clusters measure real trials: they go with environment 'real' or 'staged',"
                " got 'simulated'"
            )
        return self

    @property
    def simulated_trials(self) -> int:
        """Trials measured in the simulation.

        In a staged training they fill whole batches: an update learns from one environment.
        """
        if self.environment == "staged":
            return -(-self.trials // self.batch_size) * self.batch_size
        return self.trials if self.environment == "simulated" else 0

    @property
    def total_trials(self) -> int:
        """Trials measured in all."""
        if self.environment == "staged":
            return self.simulated_trials + self.real_trials
        return self.trials


class EvaluateSettings(Settings):
    """How the winner is found."""

    num_learned: int = Field(3, ge=0, le=100, description="Learned placements to judge at most")
    search_trials: int = Field(
        2000,
        ge=0,
        le=10_000_000,
        description="Evaluations of the search in the simulation (`placer search --method auto`),"
        " whose best placement is judged as well; 0: no search",
    )
    rounds: int = Field(15, ge=3, le=10_000, description="Timed steps of each placement")


class FidelitySettings(Settings):
    """How the simulation is compared with the real devices."""

    count: int = Field(
        30, ge=1, le=10_000, description="Placements to measure, from one device to random ones"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Of the placements and of their order")
    measurement: MeasurementSettings = MeasurementSettings(
        max_timed_steps=10, relative_half_width=0.03, budget_s=10.0
    )


class MeasureFidelitySettings(Settings):
    """All stages, from a graph to the fidelity of its simulation."""

    profile: ProfileSettings = ProfileSettings()
    group: GroupSettings = GroupSettings()
    fidelity: FidelitySettings = FidelitySettings()


class BenchmarkSettings(Settings):
    """Which searches are compared, on which graphs."""

    suite: str = Field(
        "msr",
        description="'mirhoseini2017': the paper's workloads on its machines, 'msr': the graphs"
        " published with Tarnawski et al. (2020), 'simulator': the simulator's own speed, or a"
        " folder of graph files",
    )
    folder: Path = Field(
        Path("../shared/workloads/msr"), description="Where suite 'msr' has its graphs"
    )
    graphs: tuple[str, ...] = Field(
        (),
        description="Only these graphs of the suite, by name; for suite 'simulator' a graph file"
        " to simulate instead of a generated step of 10,000 ops",
    )
    topology: str | None = Field(
        None,
        description="A packaged name or a TOML file, instead of the suite's own topologies",
    )
    methods: tuple[str, ...] = Field(
        (), description="Search methods and heuristics by name; none means all"
    )
    trials: tuple[Annotated[int, Field(ge=1, le=10_000_000)], ...] = Field(
        (2000,), min_length=1, description="Evaluations of each search; each number is a row"
    )
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = Field(
        (0, 1, 2), min_length=1, description="One search of each method for each"
    )
    group: GroupSettings = GroupSettings()


class OptimizeSettings(Settings):
    """All stages, from a graph to a placement."""

    profile: ProfileSettings = ProfileSettings()
    group: GroupSettings = GroupSettings()
    train: TrainSettings = TrainSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
