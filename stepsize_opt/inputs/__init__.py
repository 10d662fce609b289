"""Callers' values become checked values."""

from stepsize_opt.inputs.checks import (
    SLACK,
    Array,
    check_one_of,
    check_unbiased,
    distribution,
    generator,
    is_list,
    items,
    layer_sizes,
    positive_number,
    probability_array,
    read_only,
    real_array,
    real_number,
    refuse_options,
    solve_settings,
    symmetric_part,
    whole_number,
)
from stepsize_opt.inputs.digests import digest
from stepsize_opt.inputs.estimated import EstimatedSmoothness
from stepsize_opt.inputs.files import atomic_write, broken_is_value_error, json_text, load_matrix, write_text
from stepsize_opt.inputs.matrices import SMOOTHNESS_REMEDY, Symmetric, check_positive_definite, dense, read_matrix
from stepsize_opt.inputs.memory import LARGE, check_dense, check_memory
from stepsize_opt.inputs.registries import enter_class
from stepsize_opt.inputs.results import Result, Saved, Shown
from stepsize_opt.inputs.saved import check_symmetric_finite, from_fields, is_result
from stepsize_opt.inputs.structures import (
    NAMED_STRUCTURES,
    BlockDiagonal,
    Direction,
    Structure,
    pattern_of,
    pattern_with,
)

__all__ = [
    "LARGE",
    "NAMED_STRUCTURES",
    "SLACK",
    "SMOOTHNESS_REMEDY",
    "Array",
    "BlockDiagonal",
    "Direction",
    "EstimatedSmoothness",
    "Result",
    "Saved",
    "Shown",
    "Structure",
    "Symmetric",
    "atomic_write",
    "broken_is_value_error",
    "check_dense",
    "check_memory",
    "check_one_of",
    "check_positive_definite",
    "check_symmetric_finite",
    "check_unbiased",
    "dense",
    "digest",
    "distribution",
    "enter_class",
    "from_fields",
    "generator",
    "is_list",
    "is_result",
    "items",
    "json_text",
    "layer_sizes",
    "load_matrix",
    "pattern_of",
    "pattern_with",
    "positive_number",
    "probability_array",
    "read_matrix",
    "read_only",
    "real_array",
    "real_number",
    "refuse_options",
    "solve_settings",
    "symmetric_part",
    "whole_number",
    "write_text",
]
