// The gated delta net, one head: state S' with a row of dk floats per value component j, contiguous over the key components i.
//
//   R[j][i] = decay[i] S[j][i];  d[j] = beta (v[j] - R[j].k);  o[j] = R[j].q + d[j] (k.q);  S[j][i] = R[j][i] + k[i] d[j]
//
// which is the recurrence S <- decay S, S <- S + k d^T, o = S^T q with each row read and written once. Products of rows are
// summed as op_dot sums.

// delta_row renews a row of n floats; n known at compile time keeps the row in registers (16 lanes wide), else it is stored
// in between. g: one factor where per_key is 0.
INLINE void delta_row(float *s, const float *k, const float *q, const float *g, int per_key, float kq, float v, float beta, float *o, ptrdiff_t n) {
    v16 p[4] = {zero(), zero(), zero(), zero()}, u[4] = {zero(), zero(), zero(), zero()}, one = splat(*g);
    for (ptrdiff_t i = 0; i < n; i += 64) {
        UNROLL for (int c = 0; c < 4; c++) {
            ptrdiff_t at_c = i + 16 * c, left = n - at_c;
            if (left <= 0) break;
            v16 r = mul(at(s + at_c, left, 0), per_key ? at(g + at_c, left, 0) : one);
            put(s + at_c, r, left);
            p[c] = add(p[c], mul(r, at(k + at_c, left, 0)));
            u[c] = add(u[c], mul(r, at(q + at_c, left, 0)));
        }
    }
    float d = beta * (v - join(p));
    *o = join(u) + d * kq;
    v16 dd = splat(d);
    for (ptrdiff_t i = 0; i < n; i += 16) put(s + i, add(at(s + i, n - i, 0), mul(at(k + i, n - i, 0), dd)), n - i);
}

// delta_fixed is delta_row for n a multiple of 64 known at compile time: the row stays in registers.
INLINE void delta_fixed(float *s, const float *k, const float *q, const float *g, int per_key, float kq, float v, float beta, float *o, const int n) {
    v16 r[8], p[4], u[4], one = splat(*g);
    UNROLL for (int c = 0; c < n / 16; c++) {
        __builtin_prefetch((const char *)(s + 16 * c) + 8192); // 16 rows ahead: the state comes from memory
        r[c] = mul(load(s + 16 * c), per_key ? load(g + 16 * c) : one);
        v16 x = mul(r[c], load(k + 16 * c)), y = mul(r[c], load(q + 16 * c));
        p[c % 4] = add(c < 4 ? zero() : p[c % 4], x);
        u[c % 4] = add(c < 4 ? zero() : u[c % 4], y);
    }
    float d = beta * (v - join(p));
    *o = join(u) + d * kq;
    v16 dd = splat(d);
    UNROLL for (int c = 0; c < n / 16; c++) store(s + 16 * c, add(r[c], mul(load(k + 16 * c), dd)));
}

enum { DELTA_ROWS = 16 }; // 8 KiB of a state of 128 x 128: stays in the L1 cache over all tokens

static void op_delta(float *state, const float *q, const float *k, const float *v, const float *decay, const float *beta, float *o, const struct vec_delta *d) {
    ptrdiff_t dk = d->dk, dv = d->dv;
    for (ptrdiff_t j0 = 0; j0 < dv; j0 += DELTA_ROWS) {
        ptrdiff_t j1 = j0 + DELTA_ROWS < dv ? j0 + DELTA_ROWS : dv;
        for (ptrdiff_t t = 0; t < d->tokens; t++) {
            const float *kt = k + t * d->k_step, *qt = q + t * d->q_step, *vt = v + t * d->v_step, *g = decay + t * d->decay_step;
            float *ot = o + t * d->o_step, b = beta[t * d->beta_step], kq = op_dot(kt, qt, dk);
#define ROWS(call) for (ptrdiff_t j = j0; j < j1; j++) call
            if (dk == 128 && VEC_WIDTH == 16 && d->per_key)
                ROWS(delta_fixed(state + j * 128, kt, qt, g, 1, kq, vt[j], b, ot + j, 128));
            else if (dk == 128 && VEC_WIDTH == 16)
                ROWS(delta_fixed(state + j * 128, kt, qt, g, 0, kq, vt[j], b, ot + j, 128));
            else if (dk == 64 && VEC_WIDTH == 16)
                ROWS(delta_fixed(state + j * 64, kt, qt, g, d->per_key, kq, vt[j], b, ot + j, 64));
            else if (dk == 128 && !d->per_key)
                ROWS(delta_row(state + j * 128, kt, qt, g, 0, kq, vt[j], b, ot + j, 128));
            else
                ROWS(delta_row(state + j * dk, kt, qt, g, d->per_key, kq, vt[j], b, ot + j, dk));
#undef ROWS
        }
    }
}
