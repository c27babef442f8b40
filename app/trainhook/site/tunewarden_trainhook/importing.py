"""A finder that lets a module be patched right after it was imported, by whatever road.

The module's own finder and loader do the work; when it has run, `__spec__.loader` and `__loader__` are what they would
be without us, so that reload, pickling and inspect see nothing.
"""

import importlib
import sys


class PatchingLoader:
    """The module's own loader, and one call behind it."""

    def __init__(self, loader, part):
        self._loader = loader
        self._part = part

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = self._loader
        module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _apply(self._part, module)


class PatchingFinder:
    """First on sys.meta_path; answers for the modules in `patches` only."""

    def __init__(self, patches):
        self._patches = patches

    def find_spec(self, name, path=None, target=None):
        part = self._patches.get(name)
        if part is None:
            return None
        spec = self._found_by_others(name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = PatchingLoader(spec.loader, part)
        return spec

    def _found_by_others(self, name, path, target):
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                return spec
        return None


def _apply(part, module):
    """A version of the library that we don't understand is left as it is."""
    try:
        importlib.import_module(part, __package__).patch(module)
    except Exception as error:
        log_fault(error)


def log_fault(error):
    """Where there is no session yet."""
    try:
        importlib.import_module(".log", __package__).log_outside(error)
    except Exception:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, PatchingFinder)]


def watch_imports(patches):
    """Wait for the modules named in `patches`; those that are there already are patched now."""
    sys.meta_path.insert(0, PatchingFinder(patches))
    for name, part in patches.items():
        if name in sys.modules:
            _apply(part, sys.modules[name])
