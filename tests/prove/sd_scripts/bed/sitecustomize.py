"""For the proof's trainer only: makes sd-scripts' U-Net narrow, so that a step takes a second on a CPU.

The checkout stays as it is. Its U-Net takes its widths from constants of one module; they are changed in memory, as
soon as that module is imported. It also shows that the training hook lets an existing sitecustomize run.
"""

import importlib.abc
import importlib.machinery
import sys

WIDTHS = (32, 64, 64, 64)  # multiples of 32, for its group norms


class _Narrow(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname != "library.original_unet":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.BLOCK_OUT_CHANNELS = WIDTHS
            module.TIMESTEP_INPUT_DIM = WIDTHS[0]
            module.TIME_EMBED_DIM = WIDTHS[0] * 4

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Narrow())
