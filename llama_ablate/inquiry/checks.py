"""The registry of checks: functions without inputs but options, that return one number."""

from llama_ablate.registry import Registry

CHECKS = Registry("check")
