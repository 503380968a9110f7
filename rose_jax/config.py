"""The configuration: nested mutable dataclasses, checked by `validate()` after command-line overrides."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from rose_jax.errors import UserError, unknown


@dataclass
class DataOptions:
    dataset: str = "digits"  # digits | cifar100 | tiny | imagenet100
    dir: str = ""  # where prepared data lies; "" is $ROSE_JAX_DATA, else ~/rose_jax_data
    class_list: str = ""  # imagenet100: a file of wnids instead of the package's list
    augment: str = "standard"  # a key of data.augment.TRAIN
    pad: int = 4
    normalisation: str = "cifar100"
    synthetic_if_missing: bool = False  # smoke presets: made-up images of the right shape
    images_per_class: int = 0  # use only so many of each class and split; 0 is all
    decode_workers: int = 8  # processes that decode streamed sets, for each process of the run


@dataclass
class ScenarioOptions:
    start: str = "cold"  # cold: `tasks` equal tasks | warm: a first task, then `tasks` equal ones
    tasks: int = 10
    first_classes: int = 0  # warm: classes of the first task; 0 is half of all
    task_sizes: tuple[int, ...] = ()  # any other split, one number per stage
    class_order_seed: int = 1993
    class_order: tuple[int, ...] = ()  # an explicit order instead


@dataclass
class ModelOptions:
    encoder: str = "resnet18"  # resnet18 | tiny: one convolution per stage, for tests and quick trials
    width: int = 64  # feature dimension d is 8 x width
    stem: str = "small"  # small | conv3_pool | conv7_pool
    head: str = "cosine"  # cosine | linear
    compute_dtype: str = "float32"  # bfloat16 on accelerators; parameters and losses stay float32


@dataclass
class Schedule:
    """Learning rate of one kind of task: `lr`, times 0.1 at each milestone (an epoch)."""

    epochs: int = 100
    lr: float = 0.1
    milestones: tuple[int, ...] = ()
    weight_decay: float = 5e-4


@dataclass
class TrainOptions:
    batch_size: int = 128  # over all devices together
    momentum: float = 0.9
    first: Schedule = field(default_factory=Schedule)
    later: Schedule = field(default_factory=Schedule)
    adapt_lr: bool = True  # lr of later tasks times |C_t| / |C_1:t-1|
    steps_per_call: int = 1  # >1 on accelerators: that many steps in one fori_loop
    log_every: int = 20  # steps between lines of metrics.jsonl
    checkpoint_every: int = 0  # steps between checkpoints inside a task; 0 is an epoch


@dataclass
class LossOptions:
    kd_weight: float = 10.0  # lambda_1
    kd_temperature: float = 2.0
    ce_range: str = "new"  # new | seen: the classes cross-entropy runs over
    supcon_weight: float = 0.1  # lambda_2
    supcon_temperature: float = 0.07
    supcon_denominator: str = "negatives_and_self"  # | negatives (as printed) | all (Khosla et al.)
    expand_labels: bool = False  # FCS's rotations and mixtures as classes
    second_view: bool = True  # with expanded labels: contrast with FCS's second view; False: within the batch


@dataclass
class ProjectorOptions:
    lr: float = 1e-3  # Adam
    init: str = "identity"  # identity | random, at the start of each task
    loss: str = "squared"  # squared | norm (as printed)


@dataclass
class EvolutionOptions:
    capacity: int = 3000  # S
    alpha: float = 0.2  # noise of the pseudo-features; the paper's main text prints 0.02
    granularity: int = 1  # images per update
    solver: str = "blocked"  # direct | blocked
    ridge: float = -1.0  # rho; negative chooses by capacity and dimension
    evolve_every: int = 1  # k: only every k-th image passes the old encoder and the queue
    gd_lr: float = 1e-3
    gd_init: str = "trained"  # trained | identity | random


@dataclass
class MetricOptions:
    """Rows named ..._whitened: the within-class covariance that prototypes and images are compared in."""

    source: str = "evolved"  # evolved | newest: of the newest task alone | stream: of the test images, unlabelled
    # The drift map's own error, which widens old classes: none | task: on D_t | stream: and on the pairs seen so far
    error: str = "stream"
    kind: str = "cosine"  # cosine | lda: Gaussians of one covariance
    ridge: float = 0.003  # rho: rho tr(Sigma) / d is added to every direction before the whitening
    shrinkage: str = "fixed"  # fixed: `ridge` | ledoit_wolf: chosen from the features of D_t
    per_class_weight: float = 0.0  # of each class's own covariance; above 0 memory is C d^2 instead of d^2
    refresh: int = 64  # least number of test images between two evolutions of the metric; 0: at stage start only


@dataclass
class Recipe:
    """The schedule of a method's own authors, instead of `train`'s; what belongs to the machine stays there."""

    batch_size: int = 64
    first: Schedule = field(default_factory=Schedule)
    later: Schedule = field(default_factory=Schedule)


@dataclass
class LwFOptions:
    schedule: str = "rose"  # rose: `train`, so that rows differ by the method alone | official
    official: Recipe = field(default_factory=lambda: Recipe(first=Schedule(epochs=0)))  # no epochs: there is none
    expand_labels: bool = False  # as loss.expand_labels; the settings make both alike, so that rows compare


@dataclass
class SDCOptions:
    sigma: float = 0.3  # of the weights, on features as they are (ADC's and LDC's code)
    floor: float = 1e-5  # added to every weight; SDC's own code has 0


@dataclass
class ADCOptions:
    samples: int = 100  # m, images nearest to a prototype
    steps: int = 3
    alpha: float = 25.0  # length of a step
    step_norm: str = "batch"  # batch: the m images share alpha, as in the code | image: each its own, as printed
    rivals: str = "as_moved"  # as_moved: those before k have moved already, as in the code | unmoved
    when_none_succeeds: str = "unperturbed"  # unperturbed: of the m images, as in the code | perturbed | stay


@dataclass
class LDCOptions:
    epochs: int = 20
    lr: float = 1e-3  # Adam
    init: str = "random"  # random | identity


def _adam_recipe(epochs: int) -> Recipe:
    return Recipe(64, Schedule(epochs, 1e-3, (45, 90), 2e-4), Schedule(epochs, 1e-3, (45, 90), 2e-4))


def _efc_recipe() -> Recipe:
    return Recipe(64, Schedule(100, 1e-3, (45, 90), 2e-4), Schedule(100, 1e-4, (), 2e-4))


@dataclass
class EFCOptions:
    efm_weight: float = 10.0  # lambda
    damping: float = 0.1  # eta
    prototype_batch: int = 64
    sigma: float = 0.2  # of the drift's weights
    recipe: Recipe = field(default_factory=_efc_recipe)
    first_optimizer: str = "adam"  # adam | sgd
    head_lr_factor: float = 1.0  # of later tasks, relative to the encoder's
    augment: str = ""  # a key of data.augment.TRAIN; "" is data.augment
    pad: int = 4


@dataclass
class FCSOptions:
    temperature: float = 0.1  # of the logits
    distill_weight: float = 10.0
    transfer_weight: float = 1.0
    prototype_weight: float = 10.0
    prototype_batch: int = 64
    contrast_weight: float = 0.1
    contrast_temperature: float = 0.07
    recipe: Recipe = field(default_factory=lambda: _adam_recipe(101))
    first_optimizer: str = "adam"  # adam | sgd


@dataclass
class TestOptions:
    distance: str = "cosine"  # of the nearest prototype | euclidean, as LDC's paper prints it
    batch_size: int = 128
    batches_per_call: int = 8  # batches in one scan; the last call is padded


# What changes no number of a run, and so may differ between restarts on one workdir.
FREE_KEYS = (
    "methods",
    "note",
    "preset",
    "data.dir",
    "data.decode_workers",
    "train.log_every",
    "train.checkpoint_every",
)


@dataclass
class Config:
    name: str = ""
    preset: str = "full"  # full | thin | smoke | custom: a full one with keys changed on the command line
    note: str = ""  # what a reader of the results must know
    seed: int = 0
    methods: tuple[str, ...] = ("base", "projector", "gd", "rose")
    data: DataOptions = field(default_factory=DataOptions)
    scenario: ScenarioOptions = field(default_factory=ScenarioOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    train: TrainOptions = field(default_factory=TrainOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    projector: ProjectorOptions = field(default_factory=ProjectorOptions)
    evolution: EvolutionOptions = field(default_factory=EvolutionOptions)
    metric: MetricOptions = field(default_factory=MetricOptions)
    lwf: LwFOptions = field(default_factory=LwFOptions)
    sdc: SDCOptions = field(default_factory=SDCOptions)
    adc: ADCOptions = field(default_factory=ADCOptions)
    ldc: LDCOptions = field(default_factory=LDCOptions)
    efc: EFCOptions = field(default_factory=EFCOptions)
    fcs: FCSOptions = field(default_factory=FCSOptions)
    test: TestOptions = field(default_factory=TestOptions)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


CHOICES = {
    "scenario.start": ("cold", "warm"),
    "model.encoder": ("resnet18", "tiny"),
    "model.head": ("cosine", "linear"),
    "model.stem": ("small", "conv3_pool", "conv7_pool"),
    "model.compute_dtype": ("float32", "bfloat16", "float64"),
    "loss.ce_range": ("new", "seen"),
    "loss.supcon_denominator": ("negatives_and_self", "negatives", "all"),
    "projector.init": ("identity", "random"),
    "projector.loss": ("squared", "norm"),
    "evolution.solver": ("direct", "blocked"),
    "evolution.gd_init": ("trained", "identity", "random"),
    "metric.source": ("evolved", "newest", "stream"),
    "metric.error": ("none", "task", "stream"),
    "metric.kind": ("cosine", "lda"),
    "metric.shrinkage": ("fixed", "ledoit_wolf"),
    "test.distance": ("cosine", "euclidean"),
    "lwf.schedule": ("rose", "official"),
    "adc.step_norm": ("batch", "image"),
    "adc.rivals": ("as_moved", "unmoved"),
    "adc.when_none_succeeds": ("unperturbed", "perturbed", "stay"),
    "ldc.init": ("random", "identity"),
    "efc.first_optimizer": ("adam", "sgd"),
    "fcs.first_optimizer": ("adam", "sgd"),
    "preset": ("full", "thin", "smoke", "custom"),
}
POSITIVE = (
    "scenario.tasks",
    "model.width",
    "train.batch_size",
    "train.first.epochs",
    "train.later.epochs",
    "train.steps_per_call",
    "train.log_every",
    "evolution.capacity",
    "evolution.granularity",
    "evolution.evolve_every",
    "adc.samples",
    "adc.steps",
    "ldc.epochs",
    *(f"{name}.{key}" for name in ("efc", "fcs") for key in ("prototype_batch", "recipe.batch_size")),
    *(f"{name}.recipe.{part}.epochs" for name in ("efc", "fcs") for part in ("first", "later")),
    "test.batch_size",
    "test.batches_per_call",
)


def validate(config: Config) -> Config:
    """Raises a UserError that names the key, its value and what is allowed."""
    for key, allowed in CHOICES.items():
        if get(config, key) not in allowed:
            raise unknown(f"value of config.{key}", str(get(config, key)), allowed)
    for key in POSITIVE:
        if get(config, key) < 1:
            raise UserError(f"config.{key} is {get(config, key)}; it must be at least 1.")
    if config.train.checkpoint_every < 0:
        raise UserError(f"config.train.checkpoint_every is {config.train.checkpoint_every}; 0 is once an epoch.")
    if config.test.batch_size % config.evolution.granularity:
        raise UserError(
            f"config.test.batch_size {config.test.batch_size} must be a multiple of config.evolution.granularity "
            f"{config.evolution.granularity}: updates do not cross test batches."
        )
    if config.scenario.start == "cold" and config.scenario.first_classes:
        raise UserError("config.scenario.first_classes is for warm start; a cold one has equal tasks.")
    if config.evolution.alpha < 0:
        raise UserError(f"config.evolution.alpha is {config.evolution.alpha}; it must not be negative.")
    for key in ("sdc.sigma", "efc.sigma"):
        if not 0 < get(config, key) < math.inf:
            raise UserError(f"config.{key} is {get(config, key)}; it must be a positive number.")
    if not config.sdc.floor >= 0:
        raise UserError(f"config.sdc.floor is {config.sdc.floor}; it must not be negative.")
    _validate_metric(config.metric)
    if config.model.compute_dtype == "float64" and not _x64():
        raise UserError("config.model.compute_dtype float64 needs the environment variable JAX_ENABLE_X64=1.")
    for key in ("train", "lwf.official", "efc.recipe", "fcs.recipe"):
        for kind in ("first", "later"):
            milestones = get(config, f"{key}.{kind}.milestones")
            if list(milestones) != sorted(set(milestones)):
                raise UserError(f"config.{key}.{kind}.milestones {milestones} must increase.")
    return config


def _validate_metric(metric: MetricOptions) -> None:
    if not 0 <= metric.ridge < math.inf:
        raise UserError(f"config.metric.ridge is {metric.ridge}; it must be a finite number and not negative.")
    if not 0 <= metric.per_class_weight <= 1:
        raise UserError(f"config.metric.per_class_weight is {metric.per_class_weight}; it must be from 0 to 1.")
    if metric.per_class_weight and metric.source != "evolved":
        raise UserError(
            f"config.metric.per_class_weight {metric.per_class_weight} needs config.metric.source evolved: "
            f"{metric.source!r} has no covariance of each old class."
        )
    if metric.refresh < 0:
        raise UserError(f"config.metric.refresh is {metric.refresh}; it must be 0 (never) or a number of images.")


def from_json(text: str) -> Config:
    """The Config that `to_json` wrote; keys it does not know are left out, those it lacks have their default."""
    return _fill(Config(), json.loads(text))


def get(config: Any, key: str) -> Any:
    """get(config, "train.first.lr")."""
    for part in key.split("."):
        config = getattr(config, part)
    return config


def keys(config: Any, prefix: str = "") -> list[str]:
    """Every dotted key of a configuration."""
    found = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            found += keys(value, f"{prefix}{item.name}.")
        else:
            found.append(prefix + item.name)
    return found


def _fill(config: Any, saved: dict[str, Any]) -> Any:
    for item in dataclasses.fields(config):
        if item.name in saved:
            value, current = saved[item.name], getattr(config, item.name)
            if dataclasses.is_dataclass(current):
                _fill(current, value)
            else:
                setattr(config, item.name, tuple(value) if isinstance(value, list) else value)
    return config


def _x64() -> bool:
    import jax

    return bool(jax.config.read("jax_enable_x64"))
