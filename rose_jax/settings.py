"""What the fourteen settings of the paper share; each setting's file adds its own few lines."""

from rose_jax.config import Config, Recipe, Schedule, TrainOptions
from rose_jax.errors import unknown
from rose_jax.micro import keep_rate_times_steps, micro

PRESETS = ("", "thin", "micro", "smoke", "tpu")


def setting(name: str, dataset: str, start: str, tasks: int) -> Config:
    """The paper's hyper-parameters (implementation details of main text and supplement)."""
    config = Config(name=name)
    config.data.dataset = dataset
    config.scenario.start, config.scenario.tasks = start, tasks
    imagenet = dataset == "imagenet100"
    config.loss.kd_weight = 5.0 if imagenet else 10.0
    config.loss.supcon_weight = 0.03 if tasks == 20 or imagenet else 0.1
    if start == "cold":
        config.train.batch_size = 128
        config.train.first = Schedule(200, 0.1, (60, 120, 180), 5e-4)
        config.train.later = Schedule(100, 0.05, (45, 90), 2e-4)
    else:
        config.train.batch_size = 64
        config.train.first = Schedule(100, 0.1, (45, 90), 5e-4)
        if dataset == "cifar100":
            config.train.later = Schedule(100, 0.01, (45, 90), 2e-4)
        else:
            config.train.later = Schedule(50, 0.01, (35, 45), 2e-4)
    if imagenet:
        config.model.stem = "conv3_pool"
        config.data.augment, config.data.pad, config.data.normalisation = "flip", 0, "imagenet"
    elif dataset == "tiny":
        # FCS only flips TinyImageNet, and the paper's warm start takes its augmentation.
        config.data.augment = "crop_flip" if start == "cold" else "flip"
        config.data.pad, config.data.normalisation = 4, "imagenet"
    else:
        config.data.augment = "autoaugment" if start == "cold" else "standard"
        config.data.pad, config.data.normalisation = 4, "cifar100"
    config.loss.expand_labels = config.lwf.expand_labels = start == "warm" and not imagenet
    _compared_methods(config)
    return config


def _compared_methods(config: Config) -> None:
    """What the authors of LDC, DPCR, EFC, FCS, PASS and IL2A use in this setting (docs/reproducibility.md).

    FeCAM's have one recipe for all data sets, which is the default of `frozen`; images of TinyImageNet and ImageNet-100
    are augmented as the setting's.
    SSRE's released code has CIFAR-100's values alone, which are the defaults: TinyImageNet and ImageNet-100 get the same,
    but for the augmentation, which is PASS's on each.
    """
    dataset = config.data.dataset
    imagenet = dataset == "imagenet100"
    if config.scenario.start == "cold":
        lr = 0.001 if dataset == "tiny" else 0.05
        config.lwf.schedule = "official"  # what produced the published figures of lwf, sdc, adc, ldc and dpcr
        config.lwf.official = Recipe(
            128, Schedule(200, 0.1, (60, 120, 160), 5e-4), Schedule(100, lr, (45, 90), 2e-4)
        )
    config.dpcr.gamma = 200.0 if dataset == "cifar100" else 2000.0
    if dataset == "cifar100":
        config.efc.augment, config.efc.pad = "padded_resized_crop", 4
    elif dataset == "tiny":
        config.efc.augment, config.efc.pad = "crop_flip", 8
    config.ssre.augment = "standard" if dataset == "cifar100" else "flip"
    config.frozen.augment = "autoaugment" if dataset == "cifar100" else ""  # FeCAM's, whatever the start
    config.fcs.contrast_weight = 0.03 if config.scenario.tasks == 20 or imagenet else 0.1
    if imagenet:
        first = Schedule(160, 0.1, (80, 120, 150), 5e-4)
        config.efc.recipe = Recipe(64, first, Schedule(100, 1e-5, (), 2e-4))
        config.efc.first_optimizer, config.efc.head_lr_factor = "sgd", 10.0
        first = Schedule(161, 0.1, (80, 120, 150), 5e-4)
        config.fcs.recipe = Recipe(64, first, Schedule(61, 1e-3, (25, 50), 2e-4))
        config.fcs.first_optimizer = "sgd"
    _prototype_family(config)


def _prototype_family(config: Config) -> None:
    """PASS and IL2A were published for warm starts only; cold ones take the same values, the augmentation included."""
    dataset = config.data.dataset
    for options in (config.pass_, config.il2a):
        options.augment = {"cifar100": "standard", "tiny": "flip", "imagenet100": "flip"}[dataset]
    if dataset == "tiny":
        config.il2a.recipe.batch_size, config.il2a.mix_range, config.il2a.distinct = 100, (0.3, 0.7), True
    if dataset == "imagenet100":
        first = Schedule(160, 0.1, (80, 120, 150), 5e-4)
        config.pass_.recipe = Recipe(64, first, Schedule(100, 1e-3, (45, 90), 2e-4))
        config.pass_.first_optimizer, config.pass_.temperature, config.pass_.radius_of = "sgd", 1.0, "deviation"
        config.il2a.recipe = Recipe(first=Schedule(epochs=0))  # never published


def preset(config: Config, arg: str) -> Config:
    """`:thin` and `:micro` are for two CPU cores and an hour, `:smoke` for seconds, made-up images if need be.

    `:tpu` is the full setting as an accelerator likes it. It sets keys of the machine alone, as if they were given on the
    command line: the run's name and notes have them, and it stays the full setting.
    """
    if arg not in PRESETS:
        raise unknown("preset", arg, PRESETS[1:])
    if not arg:
        return config
    if arg == "tpu":
        config.model.compute_dtype, config.train.steps_per_call = "bfloat16", 50
        return config
    config.preset = arg
    config.model.width = 8 if arg == "smoke" else 16
    config.rotation.turns = "random"  # base_rotation: one rotation of an image costs a quarter of all four
    for section in (config.data, config.frozen):
        if section.augment == "autoaugment":
            section.augment = "standard"
    if arg == "thin":
        _thin(config)
    elif arg == "micro":
        micro(config)
    else:
        for recipe in _recipes(config):
            _shorten(recipe, 2, 1, batch=32)
    if arg == "smoke":
        config.ldc.epochs = config.fetril.fc.epochs = 2
        config.adc.samples = 20
        config.data.synthetic_if_missing = True
        config.data.images_per_class = 16
        config.data.decode_workers = 0
    return config


def _thin(config: Config) -> None:
    """An epoch of rotated and mixed images is twelve plain ones, so it gets fewer of them.

    Batches that grow inside the step are made smaller: on a CPU an image then costs half as much (caches), and fewer
    epochs have as many steps. FCS draws as many prototypes as images.
    """
    grows = config.loss.expand_labels
    share, small = 1.0, None
    if grows:
        config.data.images_per_class, share, small = 100, 100 / 500, 16
        config.fcs.prototype_batch = 16
    # An image is four with rotations, five with mixtures alone.
    _shorten(config.pass_.recipe, *(9, 6) if grows else (6, 3), batch=small or 32, share=share)
    _shorten(config.il2a.recipe, *(7, 5) if grows else (5, 2), batch=small or 32, share=share)
    for recipe in (config.train, config.fcs.recipe):
        _shorten(recipe, *(3, 2) if grows else (24, 10), batch=small, share=share)
    _shorten(config.lwf.official, 24, 10, share=share)
    _shorten(config.frozen.recipe, 24, 0, share=share)
    _shorten(config.ssre.recipe, 24, 10, share=share)
    _shorten(config.efc.recipe, 6, 2, batch=32, share=share)
    config.efc.recipe.first.milestones = (3,)  # the second decay would have one epoch
    config.efc.prototype_batch = config.efc.recipe.batch_size  # as many as images, as its authors have it


def _recipes(config: Config) -> tuple[TrainOptions | Recipe, ...]:
    sections = (config.efc, config.fcs, config.frozen, config.ssre, config.pass_, config.il2a)
    own = [options.recipe for options in sections]
    return config.train, config.lwf.official, *own


def _shorten(
    recipe: TrainOptions | Recipe, first: int, later: int, *, batch: int | None = None, share: float = 1.0
) -> None:
    """The same shape of decay over fewer epochs, in other batches, of a share of the images; a schedule without any stays.

    Adam's rates follow `:micro`'s rule: methods that are made to change slowly would otherwise not change at all.
    """
    batch = batch or recipe.batch_size
    for schedule, epochs in ((recipe.first, first), (recipe.later, later)):
        if not schedule.epochs:
            continue
        scale = epochs / schedule.epochs
        moved = sorted({max(1, round(m * scale)) for m in schedule.milestones})
        schedule.milestones = tuple(m for m in moved if m < epochs)
        schedule.epochs = epochs
        if epochs:
            keep_rate_times_steps(schedule, batch / recipe.batch_size / (scale * share))
    recipe.batch_size = batch
