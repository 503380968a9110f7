"""Your own images (docs/your_own_data.md): a prepared folder, an .npz file, any set that TFDS has prepared.

Command:   scripts/prepare_data folder --from DIR --name pets
           python -m rose_jax.main --config configs/folder.py --config.data.name=pets --config.scenario.tasks=4
           instead of a name: --config.data.dataset=npz:FILE or --config.data.dataset=tfds:NAME
Hardware:  2 CPU cores and an evening for some thousand images of 64 pixels; :full (width 64, the paper's schedule) for
           an accelerator, :smoke (seconds) to see that it runs
"""

from rose_jax.config import Config, Recipe, Schedule
from rose_jax.errors import unknown


def get_config(arg: str = "") -> Config:
    if arg not in ("", "full", "smoke"):
        raise unknown("preset", arg, ("full", "smoke"))
    config = Config(name=f"folder_{arg}" if arg else "folder", preset="own")
    config.data.dataset, config.data.normalisation = "folder", "measured"
    config.data.augment = "crop_flip"  # shift, if a mirrored image is another class
    config.model.stem = "by_size"
    config.scenario.tasks = 4
    if arg == "full":
        config.train.first = Schedule(200, 0.1, (60, 120, 180), 5e-4)
        config.train.later = Schedule(100, 0.05, (45, 90), 2e-4)
        return config
    config.model.width = 16
    config.train.batch_size = 32  # a task of own images is often a few hundred
    config.train.first = Schedule(60, 0.05, (25, 50), 5e-4)
    config.train.later = Schedule(30, 0.025, (14, 26), 2e-4)
    for options in (config.efc, config.fcs, config.pass_, config.il2a, config.ssre):
        options.recipe = Recipe(32, Schedule(40, 1e-3, (18, 36), 2e-4), Schedule(20, 1e-3, (9, 18), 2e-4))
    config.frozen.recipe = Recipe(32, Schedule(60, 0.05, (), 5e-4, "cosine"), Schedule(epochs=0))
    config.evolution.capacity = 500  # 3000 invented pairs would outweigh some hundred test images
    if arg == "smoke":
        config.model.width, config.train.first.epochs, config.train.later.epochs = 4, 2, 1
        config.train.first.milestones = config.train.later.milestones = ()
    return config
