"""The configuration: nested mutable dataclasses, checked by `validate()` after command-line overrides.

Each field says what it is and what is allowed (`option`); only rules between fields stand in `validate`.
"""

import dataclasses
import json
from dataclasses import dataclass

from rose_jax.errors import UserError
from rose_jax.options import Option, check, check_types, choice, declared, fill, option, section
from rose_jax.options import get as get  # for those who have a Config
from rose_jax.options import keys as keys

# Keys of data.augment.TRAIN, whose import is slow; a test compares them.
AUGMENTATIONS = ("standard", "crop_flip", "flip", "shift", "autoaugment", "padded_resized_crop", "none")
LARGEST_SEED = 2**32 - 1  # numpy takes no larger one, and jax would drop the upper bits


@dataclass
class DataOptions:
    dataset: str = option(
        "digits", "digits, cifar100, tiny, imagenet100, folder (see name), npz:FILE or tfds:NAME"
    )
    name: str = option("", "folder: the name that scripts/prepare_data gave your images")
    size: int = option(0, "folder, tfds: pixels a side; 0: as prepared, of a tfds set its own or 64", at_least=0)
    dir: str = option("", "where prepared data lies; '' is $ROSE_JAX_DATA, else ~/rose_jax_data", free=True)
    class_list: str = option("", "imagenet100: a file of wnids instead of the package's list")
    augment: str = choice(AUGMENTATIONS, "how training images are varied")
    pool: int = option(1, "so many pixels a side are averaged to one: 2 makes 16 x 16 of 32 x 32", at_least=1)
    pad: int = option(4, "pixels of padding that augmentations crop from or shift by", at_least=0)
    normalisation: str = choice(
        ("cifar100", "imagenet", "digits", "measured"),
        "whose mean and deviation of each channel; measured: of the training images",
    )
    synthetic_if_missing: bool = option(False, "smoke presets: made-up images of the right shape")
    images_per_class: int = option(0, "use only so many of each class and split; 0 is all", at_least=0)
    decode_workers: int = option(8, "decoding processes of each host; 0: it does so itself", at_least=0, free=True)


@dataclass
class ScenarioOptions:
    start: str = choice(("cold", "warm"), "cold: equal tasks; warm: a first task, then equal ones")
    tasks: int = option(10, "how many equal tasks", at_least=1)
    first_classes: int = option(0, "warm: classes of the first task; 0 is half of all", at_least=0)
    task_sizes: tuple[int, ...] = option((), "any other split, one number of classes per stage", at_least=1)
    class_order_seed: int = option(1993, "shuffles the classes", at_least=0, at_most=LARGEST_SEED)
    class_order: tuple[int, ...] = option((), "an explicit order instead: each class once, from 0", at_least=0)


@dataclass
class ModelOptions:
    encoder: str = choice(("resnet18", "tiny"), "tiny: one convolution per stage, for tests and quick trials")
    width: int = option(64, "feature dimension d is 8 x width", at_least=1)
    stem: str = choice(
        ("small", "conv3_pool", "conv7_pool", "by_size"), "first layers of the encoder; by_size: of the images"
    )
    enlarge: int = option(
        0,
        "pixels a side that images are enlarged to before the first layer; 0: as they are; 224: FeTrIL's",
        at_least=0,
    )
    head: str = choice(("cosine", "linear"), "what is trained on top of the features")
    compute_dtype: str = choice(
        ("float32", "bfloat16", "float64"), "of the encoder; bfloat16 on accelerators", machine=True
    )


@dataclass
class Schedule:
    """Learning rate of one kind of task: `lr`, times 0.1 at each milestone (an epoch), or along half a cosine."""

    epochs: int = option(100, "passes over the task's images", at_least=1)
    lr: float = option(0.1, "learning rate before the first milestone", at_least=0)
    milestones: tuple[int, ...] = option((), "epochs from which lr is a tenth", at_least=1, increasing=True)
    weight_decay: float = option(5e-4, "L2, added to the gradient", at_least=0)
    decay: str = choice(("milestones", "cosine"), "cosine: to 0 over all epochs, without milestones")


@dataclass
class TrainOptions:
    batch_size: int = option(128, "images of a step, over all devices together", at_least=1)
    momentum: float = option(0.9, "of SGD", at_least=0, below=1)
    first: Schedule = section(Schedule, "of the first task")
    later: Schedule = section(Schedule, "of every later task")
    adapt_lr: bool = option(True, "lr of later tasks times |C_t| / |C_1:t-1|")
    steps_per_call: int = option(
        1, "above 1 on accelerators: that many steps in one fori_loop", at_least=1, machine=True
    )
    log_every: int = option(20, "steps between lines of metrics.jsonl", at_least=1, free=True)
    checkpoint_every: int = option(0, "steps between checkpoints; 0 is once an epoch", at_least=0, free=True)


@dataclass
class LossOptions:
    kd_weight: float = option(10.0, "lambda_1, of the distillation", at_least=0)
    kd_temperature: float = option(2.0, "of the distillation's logits", above=0)
    ce_range: str = choice(("new", "seen"), "the classes cross-entropy runs over")
    supcon_weight: float = option(0.1, "lambda_2, of the supervised contrast", at_least=0)
    supcon_temperature: float = option(0.07, "of the supervised contrast", above=0)
    supcon_denominator: str = choice(("negatives_and_self", "negatives", "all"), "negatives: as printed")
    expand_labels: bool = option(False, "FCS's rotations and mixtures as classes")
    second_view: bool = option(True, "with expanded labels: contrast with FCS's view; False: within the batch")


@dataclass
class ProjectorOptions:
    lr: float = option(1e-3, "of Adam", at_least=0)
    init: str = choice(("identity", "random"), "at the start of each task")
    loss: str = choice(("squared", "norm"), "distance of projected to new features; norm: as printed")


@dataclass
class EvolutionOptions:
    capacity: int = option(3000, "S, pairs in the queue", at_least=1, at_most=LARGEST_SEED)
    alpha: float = option(0.2, "noise of the pseudo-features; the paper's main text prints 0.02", at_least=0)
    granularity: int = option(1, "images per update", at_least=1)
    solver: str = choice(("blocked", "direct"), "of the least squares")
    ridge: float = option(-1.0, "rho; negative chooses by capacity and dimension")
    evolve_every: int = option(1, "k: only every k-th image passes the old encoder and the queue", at_least=1)
    gd_lr: float = option(1e-3, "of the rows that evolve by gradient descent", at_least=0)
    gd_init: str = choice(("trained", "identity", "random"), "where gradient descent starts")


@dataclass
class MetricOptions:
    """Rows named ..._whitened: the within-class covariance that prototypes and images are compared in."""

    source: str = choice(
        ("evolved", "newest", "queue"),
        "newest: of the newest task alone; queue: the Gram matrix of its new features",
    )
    queue_ridge: float = option(
        6.0, "kappa of the queue's metric: kappa / classes x tr / d of its Gram matrix", at_least=0
    )
    error: str = choice(
        ("stream", "task", "none"), "the drift map's, widens old classes; task: on D_t; stream: and on test pairs"
    )
    kind: str = choice(("cosine", "lda"), "lda: Gaussians of one covariance")
    ridge: float = option(0.003, "rho: rho tr(Sigma) / d is added to every direction", at_least=0)
    shrinkage: str = choice(("fixed", "ledoit_wolf"), "fixed: `ridge`; ledoit_wolf: chosen from D_t")
    per_class_weight: float = option(0.0, "of each class's own covariance (memory C d^2)", at_least=0, at_most=1)
    refresh: int = option(64, "least images between two evolutions of it; 0: at stage start only", at_least=0)


@dataclass
class Recipe:
    """The schedule of a method's own authors, instead of `train`'s; what belongs to the machine stays there."""

    batch_size: int = option(64, "images of a step, over all devices together", at_least=1)
    first: Schedule = section(Schedule, "of the first task")
    later: Schedule = section(Schedule, "of every later task")


NO_SCHEDULE = {
    "first.epochs": Option("passes over the task's images; 0: the authors give no schedule", at_least=0)
}


@dataclass
class LwFOptions:
    schedule: str = choice(("rose", "official"), "rose: `train`, so that rows differ by the method alone")
    official: Recipe = section(lambda: Recipe(first=Schedule(epochs=0)), "of LDC's authors", NO_SCHEDULE)
    expand_labels: bool = option(False, "as loss.expand_labels; settings make both alike, so that rows compare")


@dataclass
class SDCOptions:
    sigma: float = option(0.3, "of the weights, on features as they are (ADC's and LDC's code)", above=0)
    floor: float = option(1e-5, "added to every weight; SDC's own code has 0", at_least=0)


@dataclass
class ADCOptions:
    samples: int = option(100, "m, images nearest to a prototype", at_least=1)
    steps: int = option(3, "of the perturbation", at_least=1)
    alpha: float = option(25.0, "length of a step", at_least=0)
    step_norm: str = choice(("batch", "image"), "batch: the m images share alpha; image: as printed")
    rivals: str = choice(("as_moved", "unmoved"), "as_moved: those before k have moved already, as in the code")
    when_none_succeeds: str = choice(("unperturbed", "perturbed", "stay"), "whose drift is taken; stay: none")


@dataclass
class LDCOptions:
    epochs: int = option(20, "of the map's training", at_least=1)
    lr: float = option(1e-3, "of Adam", at_least=0)
    init: str = choice(("random", "identity"), "where the map starts")


@dataclass
class DPCROptions:
    """Row dpcr and rows named ..._ridge."""

    lam: float = option(1e-9, "of the least-squares map from old to new features", at_least=0)
    gamma: float = option(200.0, "ridge of the classifier, beside sums over all images", above=0)
    threshold: float = option(
        0.0,
        "a class spans directions of at least this share of its largest; 0: as in the code",
        at_least=0,
        below=1,
    )
    sums: str = choice(
        ("augmented", "plain"), "which images of the new task the classifier sums; augmented: the code"
    )
    refresh: int = option(
        64, "evolved rows: least images between two solutions; 0: at stage start only", at_least=0
    )


def _adam(epochs: int, milestones: tuple[int, ...] = (45, 90)) -> Schedule:
    return Schedule(epochs, 1e-3, milestones, 2e-4)


@dataclass
class EFCOptions:
    efm_weight: float = option(10.0, "lambda", at_least=0)
    damping: float = option(0.1, "eta", at_least=0)
    prototype_batch: int = option(64, "prototypes drawn for a step", at_least=1)
    sigma: float = option(0.2, "of the drift's weights", above=0)
    recipe: Recipe = section(lambda: Recipe(64, _adam(100), Schedule(100, 1e-4, (), 2e-4)), "of EFC's authors")
    first_optimizer: str = choice(("adam", "sgd"), "of the first task")
    head_lr_factor: float = option(1.0, "of later tasks, relative to the encoder's", at_least=0)
    augment: str = choice(("", *AUGMENTATIONS), "instead of data.augment; '' is that")
    pad: int = option(4, "of `augment`, as data.pad", at_least=0)


@dataclass
class FCSOptions:
    temperature: float = option(0.1, "of the logits", above=0)
    distill_weight: float = option(10.0, "of the distance to the old encoder's features", at_least=0)
    transfer_weight: float = option(1.0, "of the map from old to new features", at_least=0)
    prototype_weight: float = option(10.0, "of the cross-entropy of old prototypes", at_least=0)
    prototype_batch: int = option(64, "prototypes drawn for a step", at_least=1)
    contrast_weight: float = option(0.1, "of the contrast", at_least=0)
    contrast_temperature: float = option(0.07, "of the contrast", above=0)
    recipe: Recipe = section(lambda: Recipe(64, _adam(101), _adam(101)), "of FCS's authors")
    first_optimizer: str = choice(("adam", "sgd"), "of the first task")


NO_TRAINING = {
    "later.epochs": Option(
        "passes over a later task's images: none, for the encoder is frozen", at_least=0, at_most=0
    )
}


@dataclass
class FrozenOptions:
    recipe: Recipe = section(
        lambda: Recipe(128, Schedule(200, 0.1, (), 5e-4, "cosine"), Schedule(epochs=0)),
        "of FeCAM's authors",
        NO_TRAINING,
    )
    head: str = choice(("cosine", "linear"), "what the first task is trained with; linear: as FeTrIL's ports")
    augment: str = choice(("", *AUGMENTATIONS), "instead of data.augment; '' is that")
    pad: int = option(4, "of `augment`, as data.pad", at_least=0)


@dataclass
class FeCAMOptions:
    """Defaults are what FeCAM's code does; where its paper says otherwise, that is the other value."""

    beta: float = option(0.5, "of Tukey's transform x^beta; 1: none", above=0, at_most=1)
    alpha1: float = option(1.0, "of the shrinkage: how much of the mean variance is added", at_least=0)
    alpha2: float = option(1.0, "of the shrinkage: how much of the mean covariance is added", at_least=0)
    shrink_times: int = option(2, "how often each class's covariance is shrunk; 1: as printed", at_least=1)
    mean_covariance: str = choice(("nonzero", "all"), "entries off the diagonal that it is the mean of")
    correlation: bool = option(True, "row fecam: each class's covariance becomes a correlation matrix")
    scatter: str = choice(("total", "within"), "row fecam_1: about the task's mean, or each class about its own")
    common_images: str = choice(("augmented", "plain"), "row fecam_1: images that the common covariance is of")
    shrink_first: bool = option(False, "row fecam_1: whether the first task's covariance is shrunk, too")
    first_stage: str = choice(
        ("cosine", "mahalanobis"), "how the first stage predicts; cosine: to the head's rows"
    )


@dataclass
class FeTrILOptions:
    nearest: str = choice(("euclidean", "cosine"), "row fetril: which new class is nearest to an old one")
    svm_c: float = option(1.0, "row fetril: C of the support vector machines", above=0)
    svm_tol: float = option(1e-4, "row fetril: where their solver stops", above=0)
    fc_nearest: str = choice(("cosine", "euclidean"), "row fetril_fc: as `nearest`; cosine: as in the ports")
    fc_batch_size: int = option(128, "row fetril_fc: features of a step", at_least=1)
    fc: Schedule = section(lambda: Schedule(50, 0.05, (), 5e-4, "cosine"), "row fetril_fc: of its layer")


@dataclass
class SSREOptions:
    base: str = choice(
        ("pass", "plain"), "first task: row pass's, taken over as it is; plain: cross-entropy alone"
    )
    temperature: float = option(0.1, "of the logits", above=0)
    distill_weight: float = option(1.0, "of the distances to the old encoder's features", at_least=0)
    prototype_weight: float = option(10.0, "of the cross-entropy of old prototypes", at_least=0)
    prototype_batch: int = option(128, "prototypes drawn for a step", at_least=1)
    detach_similarity: bool = option(False, "no gradient through the likeness to old classes, as PyCIL has it")
    prototypes: str = choice(("augmented", "plain"), "images that prototypes are made of")
    recipe: Recipe = section(lambda: Recipe(128, _adam(101), Schedule(60, 2e-4, (45,), 5e-4)), "of SSRE's authors")
    augment: str = choice(("", *AUGMENTATIONS), "instead of data.augment; '' is that")
    pad: int = option(4, "of `augment`, as data.pad", at_least=0)


@dataclass
class PassOptions:
    temperature: float = option(0.1, "of the logits", above=0)
    prototype_weight: float = option(10.0, "of the cross-entropy of noisy prototypes", at_least=0)
    distill_weight: float = option(10.0, "of the distance to the old encoder's features", at_least=0)
    radius: str = choice(("first_task", "running"), "when the noise's r is measured; running: averaged over tasks")
    radius_of: str = choice(("variance", "deviation"), "deviation: mean of all standard deviations")
    prototypes: str = choice(("augmented", "plain"), "images that prototypes and r are made of")
    # Its authors' scheduler steps before each epoch, not after it: an epoch is missing before the first decay.
    recipe: Recipe = section(lambda: Recipe(64, _adam(101, (44, 89)), _adam(101, (44, 89))), "of PASS's authors")
    first_optimizer: str = choice(("adam", "sgd"), "of the first task")
    augment: str = choice(("", *AUGMENTATIONS), "instead of data.augment; '' is that")
    pad: int = option(4, "of `augment`, as data.pad", at_least=0)


@dataclass
class IL2AOptions:
    temperature: float = option(0.1, "of the logits", above=0)
    semantic_weight: float = option(10.0, "of the cross-entropy of augmented prototypes", at_least=0)
    distill_weight: float = option(10.0, "of the distance to the old encoder's features", at_least=0)
    gamma: float = option(2.5, "strength of the semantic augmentation", at_least=0)
    legacy_cov_index: bool = option(True, "classes take each other's covariances, as in the authors' code")
    distinct: bool = option(False, "no prototype twice in a step, as in the authors' TinyImageNet code")
    mix_times: int = option(4, "permutations that a batch is mixed with", at_least=1)
    mix_range: tuple[float, ...] = option(
        (0.4, 0.6), "least and largest weight of a mixture", at_least=0, at_most=1
    )
    prototypes: str = choice(("augmented", "plain"), "images that means and covariances are made of")
    recipe: Recipe = section(lambda: Recipe(64, _adam(101), _adam(101)), "of IL2A's authors", NO_SCHEDULE)
    augment: str = choice(("", *AUGMENTATIONS), "instead of data.augment; '' is that")
    pad: int = option(4, "of `augment`, as data.pad", at_least=0)


@dataclass
class EvaluationOptions:
    distance: str = choice(("cosine", "euclidean"), "of prototypes; euclidean: as LDC's paper prints it")
    batch_size: int = option(128, "test images of a batch", at_least=1)
    batches_per_call: int = option(8, "batches in one scan; the last call is padded", at_least=1)


@dataclass
class AdaptationOptions:
    batch_size: int = option(200, "images that a test-time method sees at once, over all devices", at_least=1)
    logits: str = choice(
        ("prototypes", "head"), "what entropies are of; prototypes: s cos(z, p_c), s fitted on D_t"
    )
    largest_scale: float = option(100.0, "the largest s that the fit may find", at_least=1)
    order: str = choice(("official", "before", "after"), "a batch is predicted before or after the step on it")
    persist: bool = option(False, "what a stream has changed goes on to the next stage; False: reset")


@dataclass
class RotationOptions:
    """Objective base_rotation: TTT's head, trained along with the encoder."""

    weight: float = option(1.0, "of its cross-entropy", at_least=0)
    turns: str = choice(("all", "random"), "rotations of an image that are trained on; random: one of four")
    moves_statistics: bool = option(
        True, "rotated images move the trunk's running statistics too, as in TTT's code"
    )


@dataclass
class SimCLROptions:
    """Objective base_simclr: TTT++'s head, trained along with the encoder."""

    weight: float = option(0.4, "of its loss; TTT++ has 0.1 x 7.1 beside 0.9 x two cross-entropies", at_least=0)
    temperature: float = option(0.5, "of the contrast, also at test time", above=0)
    hidden: int = option(0, "units of the hidden layer; 0: as many as features", at_least=0)
    out: int = option(128, "outputs of the head", at_least=1)
    moves_statistics: bool = option(
        False, "the views' passes move the encoder's running statistics too, in training and at test time"
    )


@dataclass
class TentOptions:
    optimizer: str = choice(("adam", "sgd"), "of the norms' scales and biases")
    lr: float = option(1e-3, "its learning rate", at_least=0)
    momentum: float = option(0.9, "of sgd", at_least=0, below=1)


@dataclass
class EataOptions:
    optimizer: str = choice(("adam", "sgd"), "of the norms' scales and biases")
    lr: float = option(1e-3, "its learning rate", at_least=0)
    momentum: float = option(0.9, "of sgd", at_least=0, below=1)
    entropy_share: float = option(0.4, "images below this x ln(seen classes) are reliable", at_least=0)
    margin: str = choice(("classes", "fixed"), "epsilon: 1.3 / sqrt(seen classes), or the next option")
    epsilon: float = option(
        0.05, "margin fixed: images this near to the mean prediction are redundant", at_least=0
    )
    fisher_weight: float = option(1.0, "beta; belongs to fisher_batch, ImageNet's 2000 to 64", at_least=0)
    fisher_images: int = option(2000, "of D_t, that the Fisher information is of", at_least=1)
    fisher_batch: int = option(200, "images whose mean gradient is squared", at_least=1)


@dataclass
class CottaOptions:
    optimizer: str = choice(("adam", "sgd"), "of all weights")
    lr: float = option(1e-3, "its learning rate", at_least=0)
    momentum: float = option(0.9, "of sgd", at_least=0, below=1)
    augmentations: int = option(32, "N, over which the teacher's logits are averaged", at_least=1)
    teacher: float = option(0.999, "how much of itself the teacher keeps in a step", at_least=0, at_most=1)
    restore: float = option(0.01, "probability that a weight returns to its trained value", at_least=0, at_most=1)
    threshold: str = choice(("source", "fixed"), "of augmenting; source: 5 % quantile of confidence on D_t - 0.05")
    confidence: float = option(0.72, "threshold fixed: augment below this mean confidence", at_least=0, at_most=1)
    loss: str = choice(("student", "symmetric"), "symmetric: half of it with the roles exchanged, as for ImageNet")


@dataclass
class TTTOptions:
    lr: float = option(1e-3, "of plain SGD", at_least=0)
    turns: str = choice(("random", "all"), "rotations of an image in a step; all: four times the cost")
    augment: str = choice(("crop_flip", *(a for a in AUGMENTATIONS if a != "crop_flip")), "of images to be turned")
    train_branch: bool = option(True, "the rotation branch learns as well; False: the trunk alone")


@dataclass
class TTTPlusOptions:
    """Row ttt++, CIFAR-100's values of its authors."""

    lr: float = option(1e-4, "of SGD", at_least=0)
    momentum: float = option(0.9, "of SGD", at_least=0, below=1)
    feature_weight: float = option(5.0, "of aligning features, in units of the noise on D_t", at_least=0)
    head_weight: float = option(20.0, "of aligning the head's outputs, likewise", at_least=0)
    queue_size: int = option(2048, "images, the batch included, that moments are estimated on", at_least=1)
    partial_queue: bool = option(True, "read it before it is full; False: as in the code")
    moments: str = choice(("all_tasks", "newest"), "aligned to; all_tasks: earlier ones' too, transported")


@dataclass
class Config:
    name: str = option("", "of the setting; names the default workdir")
    preset: str = choice(
        ("full", "thin", "micro", "smoke", "custom", "own"),
        "custom: full, with other values than the paper's; own: no setting of the paper",
        free=True,
    )
    note: str = option("", "what a reader of the results must know", free=True)
    seed: int = option(0, "of everything drawn but the class order", at_least=0, at_most=LARGEST_SEED)
    methods: tuple[str, ...] = option(("base", "projector", "gd", "rose"), "rows to score", free=True)
    data: DataOptions = section(DataOptions, "images, and how they are read")
    scenario: ScenarioOptions = section(ScenarioOptions, "which classes come when")
    model: ModelOptions = section(ModelOptions, "encoder and head")
    train: TrainOptions = section(TrainOptions, "optimisation of the paper's rows")
    loss: LossOptions = section(LossOptions, "what the encoder is trained on")
    projector: ProjectorOptions = section(ProjectorOptions, "the linear map trained beside the encoder")
    evolution: EvolutionOptions = section(EvolutionOptions, "what happens during the test stream")
    metric: MetricOptions = section(MetricOptions, "of rows named ..._whitened")
    lwf: LwFOptions = section(LwFOptions, "rows lwf, sdc, adc, ldc")
    sdc: SDCOptions = section(SDCOptions, "row sdc")
    adc: ADCOptions = section(ADCOptions, "row adc")
    ldc: LDCOptions = section(LDCOptions, "row ldc")
    dpcr: DPCROptions = section(DPCROptions, "row dpcr, and rows named ..._ridge")
    efc: EFCOptions = section(EFCOptions, "row efc")
    fcs: FCSOptions = section(FCSOptions, "row fcs")
    frozen: FrozenOptions = section(FrozenOptions, "the encoder of rows fetril, fetril_fc, fecam_1, fecam")
    fecam: FeCAMOptions = section(FeCAMOptions, "rows fecam, fecam_1")
    fetril: FeTrILOptions = section(FeTrILOptions, "rows fetril, fetril_fc")
    ssre: SSREOptions = section(SSREOptions, "row ssre")
    pass_: PassOptions = section(PassOptions, "row pass, which is a word of Python's own")
    il2a: IL2AOptions = section(IL2AOptions, "row il2a")
    test: EvaluationOptions = section(EvaluationOptions, "how the test stream is scored")
    testtime: AdaptationOptions = section(AdaptationOptions, "test-time methods that read images")
    rotation: RotationOptions = section(RotationOptions, "the rotation head that row ttt needs")
    simclr: SimCLROptions = section(SimCLROptions, "the SimCLR head that row ttt++ needs")
    tent: TentOptions = section(TentOptions, "row tent")
    eata: EataOptions = section(EataOptions, "row eata")
    cotta: CottaOptions = section(CottaOptions, "row cotta")
    ttt: TTTOptions = section(TTTOptions, "row ttt")
    ttt_plus: TTTPlusOptions = section(TTTPlusOptions, "row ttt++")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


# What changes no number of a run, and so may differ between restarts on one workdir.
FREE_KEYS = tuple(key for key, item in declared(Config()).items() if item.option.free)


def validate(config: Config) -> Config:
    """Raises a UserError that names the key, its value and what is allowed."""
    check(config)
    if config.test.batch_size % config.evolution.granularity:
        raise UserError(
            f"config.test.batch_size {config.test.batch_size} must be a multiple of config.evolution.granularity "
            f"{config.evolution.granularity}: updates do not cross test batches."
        )
    if config.scenario.start == "cold" and config.scenario.first_classes:
        raise UserError("config.scenario.first_classes is for warm start; a cold one has equal tasks.")
    for key in (key.removesuffix(".decay") for key in keys(config) if key.endswith(".decay")):
        if get(config, key).decay == "cosine" and get(config, key).milestones:
            raise UserError(
                f"config.{key}.decay cosine has no milestones, but config.{key}.milestones is "
                f"{get(config, key).milestones!r}. Give (), or decay milestones."
            )
    if config.metric.per_class_weight and config.metric.source != "evolved":
        raise UserError(
            f"config.metric.per_class_weight {config.metric.per_class_weight} needs config.metric.source evolved: "
            f"{config.metric.source!r} has no covariance of each old class."
        )
    if len(config.il2a.mix_range) != 2 or config.il2a.mix_range[0] > config.il2a.mix_range[1]:
        raise UserError(
            f"config.il2a.mix_range is {config.il2a.mix_range}; it must be the least and the largest weight."
        )
    if config.model.compute_dtype == "float64":
        import jax  # slow, and few need it here

        if not jax.config.read("jax_enable_x64"):
            raise UserError("config.model.compute_dtype float64 needs the environment variable JAX_ENABLE_X64=1.")
    return config


def from_json(text: str) -> Config:
    """The Config that `to_json` wrote, its types checked; keys that it lacks have their default."""
    config = Config()
    fill(config, json.loads(text))
    check_types(config)
    return config
