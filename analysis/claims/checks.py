"""The registry of checks: functions with options and no other input, which return one number."""

from llama_ablate.config.registry import Registry

CHECKS = Registry("check")
