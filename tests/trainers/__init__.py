"""Tests with real trainers: torch, accelerate, transformers and peft on the CPU, in an environment of their own."""
