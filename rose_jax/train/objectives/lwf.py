"""LwF as ADC and LDC train it: RoSE's baseline without the contrast. SDC, ADC and LDC stand on this trajectory."""

import dataclasses

from rose_jax.errors import UserError
from rose_jax.train.objectives.base import make_base
from rose_jax.train.projector import with_projector
from rose_jax.train.schedule import follow
from rose_jax.types import Objective, Parts


def make(parts: Parts) -> Objective:
    config, options = parts.config, parts.config.lwf
    loss = dataclasses.replace(config.loss, supcon_weight=0.0, expand_labels=options.expand_labels)
    objective = with_projector(make_base(parts, loss), parts)
    if options.schedule == "rose":
        return objective
    if options.official.first.epochs < 1:
        raise UserError(
            f"config.lwf.schedule is 'official', but LDC's authors give no schedule for {config.data.dataset}, "
            f"{config.scenario.start} start. Use 'rose', or fill in config.lwf.official."
        )
    return objective._replace(train=follow(options.official, config.train))
