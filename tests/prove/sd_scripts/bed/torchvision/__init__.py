"""Stands in for torchvision in the proof: PyPI's does not load beside the CPU build of torch.

train_network.py needs of it only how an image becomes a tensor.
"""
