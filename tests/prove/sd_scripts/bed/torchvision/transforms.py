"""What sd-scripts uses of torchvision.transforms, for 8-bit RGB images."""

import numpy as np
import torch


class Compose:
    """One transform after another."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    """Height x width x channels in 0..255 becomes channels x height x width in 0..1."""

    def __call__(self, image):
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float() / 255


class Normalize:
    """(value - mean) / std, the same for all channels."""

    def __init__(self, mean, std):
        self.mean, self.std = mean[0], std[0]

    def __call__(self, tensor):
        return (tensor - self.mean) / self.std
