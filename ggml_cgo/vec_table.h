// The table of one instruction set. Included once by each vec_<set>.c, which chooses VEC_SET, VEC_WIDTH and VEC_HALF.
#include "vec.h"

#include "vec_lanes.h"
#include "vec_ops.h"

#include "attention.h"
#include "delta.h"

const struct vec_table VEC_SET = {
    op_rms_norm, op_l2_norm, op_add, op_add_scaled, op_scale, op_silu, op_silu_mul, op_sigmoid, op_sigmoid_mul, op_exp, op_softmax, op_dot,
    op_arg_max, op_rope_half, op_rope_adjacent, op_conv, op_store_kv, op_attend, op_merge, op_delta,
};
