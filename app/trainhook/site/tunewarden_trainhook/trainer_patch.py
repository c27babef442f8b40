"""transformers.Trainer: its adapter and what is patched in transformers.trainer."""


def patch(module):
    """`module` is transformers.trainer, just imported."""
