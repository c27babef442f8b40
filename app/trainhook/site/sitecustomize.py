"""Run by Python itself when this folder is on PYTHONPATH: installs the hook, then runs the sitecustomize it hides."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_HERE = os.path.dirname(os.path.abspath(__file__))


def _install():
    """Nothing that goes wrong in the hook may be seen by the program: it then runs as if there were no hook."""
    if not (os.environ.get("TUNEWARDEN_CONTROL_DIR") or os.environ.get("TUNEWARDEN_WATCH_DIR")):
        return
    try:
        import tunewarden_trainhook

        tunewarden_trainhook.install()
    except Exception:  # it is not even there to log
        sys.modules.pop("tunewarden_trainhook", None)


def _chain():
    """Run the sitecustomize that would have run without us, under its own name. Its faults are its own."""
    rest = [folder for folder in sys.path if os.path.abspath(folder or os.getcwd()) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_install()
_chain()
