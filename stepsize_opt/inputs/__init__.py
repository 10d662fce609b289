"""Callers' values become checked values."""

from stepsize_opt.inputs.checks import (
    LARGE as LARGE,
    SLACK as SLACK,
    Array as Array,
    Immutable as Immutable,
    asymmetry as asymmetry,
    check_dense as check_dense,
    check_kind as check_kind,
    check_memory as check_memory,
    check_objective as check_objective,
    check_one_of as check_one_of,
    check_unbiased as check_unbiased,
    dimensions as dimensions,
    distribution as distribution,
    enter_class as enter_class,
    generator as generator,
    is_list as is_list,
    items as items,
    layer_sizes as layer_sizes,
    positive_number as positive_number,
    probability_array as probability_array,
    read_only as read_only,
    read_rows as read_rows,
    real_array as real_array,
    real_number as real_number,
    real_sparse as real_sparse,
    refuse_options as refuse_options,
    solve_settings as solve_settings,
    symmetric_part as symmetric_part,
    whole_number as whole_number,
)
from stepsize_opt.inputs.estimated import EstimatedSmoothness as EstimatedSmoothness
from stepsize_opt.inputs.files import (
    atomic_write as atomic_write,
    broken_is_value_error as broken_is_value_error,
    json_text as json_text,
    read_arrays as read_arrays,
    write_text as write_text,
)
from stepsize_opt.inputs.matrices import (
    REGULARISE as REGULARISE,
    SMOOTHNESS_REMEDY as SMOOTHNESS_REMEDY,
    Symmetric as Symmetric,
    check_positive_definite as check_positive_definite,
    dense as dense,
    read_matrix as read_matrix,
)
from stepsize_opt.inputs.results import Saved as Saved, Shown as Shown
from stepsize_opt.inputs.saved import from_fields as from_fields
from stepsize_opt.inputs.structures import (
    NAMED_STRUCTURES as NAMED_STRUCTURES,
    STRUCTURE_FORMS as STRUCTURE_FORMS,
    BlockDiagonal as BlockDiagonal,
    Direction as Direction,
    Structure as Structure,
    parse_structure as parse_structure,
    pattern_of as pattern_of,
    pattern_with as pattern_with,
)
from stepsize_opt.inputs.units import (
    LARGEST_SPREAD as LARGEST_SPREAD,
    binary_exponent as binary_exponent,
    out_of_range as out_of_range,
    power_of_four as power_of_four,
    scaled_exactly as scaled_exactly,
)
