"""Golden data: what a correct engine must reproduce. The public names; see golden_file and user_golden."""

from gpt_search.accuracy.golden_file import (
    DEFAULT_ENGINE,
    FILES,
    GOLDEN_KINDS,
    ONNXRUNTIME_FP32,
    golden_digest,
    load_golden,
    save_golden,
)
from gpt_search.accuracy.user_golden import Spec, read_user_golden

__all__ = [
    "DEFAULT_ENGINE",
    "FILES",
    "GOLDEN_KINDS",
    "ONNXRUNTIME_FP32",
    "Spec",
    "golden_digest",
    "load_golden",
    "read_user_golden",
    "save_golden",
]
