"""The registry of checks: functions without inputs but options, that return one number."""

from llama_ablate.config.registry import Registry

CHECKS = Registry("check")
