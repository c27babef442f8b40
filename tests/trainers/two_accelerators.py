"""Two models with an Accelerator each, as accelerate's guide to several models under DeepSpeed has them."""

import torch
from accelerate import Accelerator

pairs = []
for accelerator in (Accelerator(cpu=True), Accelerator(cpu=True)):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pairs.append((accelerator, *accelerator.prepare(model, optimizer)))

for _ in range(3):
    for accelerator, model, optimizer in pairs:
        accelerator.backward(model(torch.ones(2, 4)).mean())
        optimizer.step()
        optimizer.zero_grad()
print("3 updates each")
