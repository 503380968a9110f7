"""python -m rose_jax.data.prepare DATASET --from PATH"""

import sys

from rose_jax.data.prepare.command import main

sys.exit(main())
