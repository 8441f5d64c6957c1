/* Passes over arrays (rows, n) that torch would make one operation at a time, a row after the other.

   A row and its history stay in the processor's nearest cache while everything is computed of them. Each function has a
   twin in torch beside the place that calls it (see fenchel/native/__init__.py). Arrays are contiguous; what rows share
   is addressed by two strides, of a group of rows and of a row in it, either of which may be 0.

   Strict arithmetic: NaN and infinities behave as IEEE 754 has it, and a log weight of -inf is a weight of 0. Only sums
   marked by "omp simd" may be reordered. */

#include "passes.h"

#define ROWS _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")

static const float *floats(shared s, int64_t i, int64_t each) {
    return (const float *)s.data + i / each * s.group + i % each * s.row;
}

static const double *doubles(shared s, int64_t i, int64_t each) {
    return (const double *)s.data + i / each * s.group + i % each * s.row;
}

/* e^x for x <= 0, to 2 units in the last place; 0 below the logarithm of the least normal number.
   The multiple k of log 2 nearest to x is in the last bits of t. */

static inline float exp_float(float x) {
    const float shift = 12582912.0f; /* 1.5 * 2^23 */
    float t = x * 1.44269504f + shift, k = t - shift;
    float r = x - k * 0.693359375f - k * -2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    uint32_t bits;
    float power;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;
    memcpy(&power, &bits, sizeof power);
    return x < -87.0f ? 0.0f : y * power;
}

/* Exponentials of arguments less the largest, in place; gives what their sum is divided by to make weights. */

static inline float exponentials_float(float *restrict a, int64_t n) {
    float most = -__builtin_inff();
    float sum = 0;
    GREATEST(most)
    for (int64_t i = 0; i < n; i++) most = a[i] > most ? a[i] : most;
    SUM(sum)
    for (int64_t i = 0; i < n; i++) {
        float e = exp_float(a[i] - most);
        a[i] = e;
        sum += e;
    }
    return 1.0f / sum;
}

static inline double exponentials_double(double *restrict a, int64_t n) {
    double most = -__builtin_inf();
    double sum = 0;
    GREATEST(most)
    for (int64_t i = 0; i < n; i++) most = a[i] > most ? a[i] : most;
    SUM(sum)
    for (int64_t i = 0; i < n; i++) {
        double e = exp_double(a[i] - most);
        a[i] = e;
        sum += e;
    }
    return 1.0 / sum;
}

/* To the nearest bfloat16, ties to even. */

static inline uint16_t to_bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(x != x ? 0x7fc0u : rounded);
}

static inline float from_bfloat16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

static inline void round_row(const float *restrict x, uint16_t *restrict y, int64_t n) {
    SIMD
    for (int64_t i = 0; i < n; i++) y[i] = to_bfloat16(x[i]);
}

static inline double inner_float(const float *restrict a, const float *restrict b, int64_t n) {
    double sum = 0;
    SUM(sum)
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

void fenchel_exponentials(float *x, double *wide, int64_t n) {
    SIMD
    for (int64_t i = 0; i < n; i++) x[i] = exp_float(x[i]);
    SIMD
    for (int64_t i = 0; i < n; i++) wide[i] = exp_double(wide[i]);
}

/* Mixing: up to three points, newest first, each with the mean that it stands for, its potential over alpha, the
   gradient there (residual) and its lift, arrays (rows, n); the lift in bfloat16 where `low`, as a product in low
   precision has it. */

enum { MEAN, POTENTIAL, RESIDUAL, LIFTED, PARTS };

typedef struct {
    shared part[PARTS];
    const float *square; /* squared norms of the gradients, (rows,) */
    int64_t low;
} point;

typedef struct {
    const point *point[3];
    const float *along[2]; /* inner products of the newest gradient with the earlier ones */
    const float *between;  /* of the earlier two with each other */
    int64_t count;
} history;

static const uint16_t *halves(shared s, int64_t i, int64_t each) {
    return (const uint16_t *)s.data + i / each * s.group + i % each * s.row;
}

/* Shares of the points in the affine combination whose gradient is shortest if it is affine. */

static void shares_of(const history *h, int64_t i, float *share) {
    const double tiny = 1.0842021724855044e-19, ridge = 1 + 1e-5; /* the square root of float's least normal */
    share[0] = 1;
    if (h->count == 1) return;
    double newest = h->point[0]->square[i], along[2], square[2];
    for (int64_t k = 0; k + 1 < h->count; k++) {
        double product = h->along[k][i];
        along[k] = newest - product;
        square[k] = along[k] - product + h->point[k + 1]->square[i];
        square[k] = square[k] < tiny ? tiny : square[k];
    }
    if (h->count == 2) {
        share[1] = (float)(along[0] / square[0]);
        share[0] = 1 - share[1];
        return;
    }
    double cross = along[0] - (double)h->along[1][i] + (double)h->between[i];
    double one = square[0] * ridge, other = square[1] * ridge, determinant = one * other - cross * cross;
    share[1] = (float)((along[0] * other - along[1] * cross) / determinant);
    share[2] = (float)((along[1] * one - along[0] * cross) / determinant);
    share[0] = 1 - (share[1] + share[2]);
}

/* out += share * part + step * along, or that itself: a row of `out` stays in the nearest cache. */

static inline void add_floats(
    float *restrict out, const float *restrict part, const float *restrict along, float share, float step, int64_t n,
    int anew
) {
    if (anew) {
        SIMD
        for (int64_t j = 0; j < n; j++) out[j] = share * part[j] + step * along[j];
    } else {
        SIMD
        for (int64_t j = 0; j < n; j++) out[j] += share * part[j] + step * along[j];
    }
}

static inline void add_halves(
    float *restrict out, const float *restrict part, const uint16_t *restrict along, float share, float step,
    int64_t n, int anew
) {
    if (anew) {
        SIMD
        for (int64_t j = 0; j < n; j++) out[j] = share * part[j] + step * from_bfloat16(along[j]);
    } else {
        SIMD
        for (int64_t j = 0; j < n; j++) out[j] += share * part[j] + step * from_bfloat16(along[j]);
    }
}

/* The combination, gone the part `damping` of the way along its gradient; its potential where that is wanted. */

static inline void combine(
    const history *h, int64_t i, int64_t each, int64_t n, float damping, float *restrict mean, float *restrict potential
) {
    float share[3];
    shares_of(h, i, share);
    for (int64_t k = 0; k < h->count; k++) {
        const point *p = h->point[k];
        float step = share[k] * damping;
        const float *m = floats(p->part[MEAN], i, each), *v = floats(p->part[POTENTIAL], i, each);
        add_floats(mean, m, floats(p->part[RESIDUAL], i, each), share[k], -step, n, k == 0);
        if (!potential) continue;
        if (p->low)
            add_halves(potential, v, halves(p->part[LIFTED], i, each), share[k], step, n, k == 0);
        else
            add_floats(potential, v, floats(p->part[LIFTED], i, each), share[k], step, n, k == 0);
    }
}

static inline double inner_half(const float *restrict a, const uint16_t *restrict b, int64_t n) {
    double sum = 0;
    SUM(sum)
    for (int64_t j = 0; j < n; j++) sum += (double)a[j] * from_bfloat16(b[j]);
    return sum;
}

/* The product of a gradient with that of an earlier point. */

static inline float product_with(const point *p, const float *r, int64_t i, int64_t each, int64_t n) {
    if (p->low) return (float)inner_half(r, halves(p->part[LIFTED], i, each), n);
    return (float)inner_float(r, floats(p->part[LIFTED], i, each), n);
}

/* The next point alone. */

void fenchel_following(
    const history *h, int64_t rows, int64_t each, int64_t n, float damping, float *mean, float *potential, int threads
) {
    ROWS
    for (int64_t i = 0; i < rows; i++)
        combine(h, i, each, n, damping, mean + i * n, potential ? potential + i * n : NULL);
}

/* The next point, its gradient, rounded to bfloat16 too where `rounded` is given, and its products with the newest two. */

void fenchel_mixed(
    const history *h, int64_t rows, int64_t each, int64_t n, float damping, float alpha, shared log_preference,
    float *mean, float *potential, float *residual, uint16_t *rounded, float *along, int threads
) {
    ROWS
    for (int64_t i = 0; i < rows; i++) {
        const float *restrict preference = floats(log_preference, i, each);
        float *restrict m = mean + i * n, *restrict v = potential + i * n, *restrict r = residual + i * n;
        combine(h, i, each, n, damping, m, v);
        SIMD
        for (int64_t j = 0; j < n; j++) r[j] = preference[j] + alpha * v[j];
        float scale = exponentials_float(r, n);
        SIMD
        for (int64_t j = 0; j < n; j++) r[j] = m[j] - r[j] * scale;
        if (rounded) round_row(r, rounded + i * n, n);
        for (int64_t k = 0; k < 2 && k < h->count; k++) along[k * rows + i] = product_with(h->point[k], r, i, each, n);
    }
}

/* Products of given gradients with those of the newest two points. */

void fenchel_along(const history *h, int64_t rows, int64_t each, int64_t n, const float *residual, float *along, int threads) {
    ROWS
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < 2 && k < h->count; k++)
            along[k * rows + i] = product_with(h->point[k], residual + i * n, i, each, n);
}

/* Inner products of rows with others, which are bfloat16 where `low`. */

void fenchel_products(
    int64_t rows, int64_t n, const float *one, const void *other, int low, float *product, int threads
) {
    ROWS
    for (int64_t i = 0; i < rows; i++) {
        const float *a = one + i * n;
        product[i] = (float)(low ? inner_half(a, (const uint16_t *)other + i * n, n)
                                 : inner_float(a, (const float *)other + i * n, n));
    }
}

/* One point further than the newest, which is not `low`, undamped, in the rows where this moves it by at most the root of
   `most` in the norm of the lifts; elsewhere the newest itself, and the mean that it leads to. */

void fenchel_further(
    const history *h, int64_t rows, int64_t each, int64_t n, shared rest, const float *most,
    float *x, float *potential, float *mean, float *image, int threads
) {
    ROWS
    for (int64_t i = 0; i < rows; i++) {
        const float *restrict u = floats(rest, i, each);
        const float *restrict here = floats(h->point[0]->part[MEAN], i, each);
        const float *restrict level = floats(h->point[0]->part[POTENTIAL], i, each);
        const float *restrict r = floats(h->point[0]->part[RESIDUAL], i, each);
        const float *restrict l = floats(h->point[0]->part[LIFTED], i, each);
        float *restrict y = x + i * n, *restrict v = potential + i * n;
        float *restrict m = mean + i * n, *restrict w = image + i * n;
        combine(h, i, each, n, 1, m, v);
        double square = 0;
        SUM(square)
        for (int64_t j = 0; j < n; j++) square += (double)(here[j] - m[j]) * (v[j] - level[j]);
        if (square <= most[i]) {
            SIMD
            for (int64_t j = 0; j < n; j++) {
                y[j] = u[j] - m[j];
                w[j] = v[j];
            }
        } else {
            SIMD
            for (int64_t j = 0; j < n; j++) {
                y[j] = u[j] - here[j];
                v[j] = level[j];
                m[j] = here[j] - r[j];
                w[j] = level[j] + l[j];
            }
        }
    }
}

/* Attention's weights, their argument, and the gradient u - p there. */

void fenchel_first_order(
    int64_t rows, int64_t each, int64_t n, float alpha, shared log_preference, shared rest, const float *scores,
    float *argument, float *weights, float *residual, int threads
) {
    ROWS
    for (int64_t i = 0; i < rows; i++) {
        const float *restrict preference = floats(log_preference, i, each), *restrict u = floats(rest, i, each);
        const float *restrict s = scores + i * n;
        float *restrict a = argument + i * n, *restrict p = weights + i * n, *restrict r = residual + i * n;
        SIMD
        for (int64_t j = 0; j < n; j++) p[j] = a[j] = preference[j] + alpha * s[j];
        float scale = exponentials_float(p, n);
        SIMD
        for (int64_t j = 0; j < n; j++) {
            p[j] *= scale;
            r[j] = u[j] - p[j];
        }
    }
}

/* A point seen in float64, given its lift, in whose place its weights are left; what is handed on is rounded.

   sums: of what ||lambda/alpha||^2 is beyond ||z||^2, of the sizes of the gradient's coordinates, and of the weighted
   squares of the templates, (3, rows). */

void fenchel_seen(
    int64_t rows, int64_t each, int64_t n, double alpha, shared log_preference, shared rest, shared squares,
    const double *scores, const double *x, double *lifted, float *potential, float *residual, double *sums, int threads
) {
    ROWS
    for (int64_t i = 0; i < rows; i++) {
        const double *restrict preference = doubles(log_preference, i, each), *restrict u = doubles(rest, i, each);
        const double *restrict square = doubles(squares, i, each);
        const double *restrict s = scores + i * n, *restrict y = x + i * n;
        double *restrict p = lifted + i * n;
        float *restrict v = potential + i * n, *restrict r = residual + i * n;
        double dual = 0, size = 0, spread = 0;
        SUM(dual)
        for (int64_t j = 0; j < n; j++) {
            double level = s[j] + p[j];
            dual += y[j] * (s[j] + level);
            v[j] = (float)level;
            p[j] = preference[j] + alpha * level;
        }
        double scale = exponentials_double(p, n);
        SUM(size, spread)
        for (int64_t j = 0; j < n; j++) {
            double weight = p[j] * scale, apart = u[j] - weight - y[j];
            p[j] = weight;
            r[j] = (float)apart;
            size += __builtin_fabs(apart);
            spread += weight * square[j];
        }
        sums[i] = dual;
        sums[rows + i] = size;
        sums[2 * rows + i] = spread;
    }
}

/* The weights at a point, and sums (3, rows): of what ||lambda/alpha||^2 is beyond ||z||^2, of the squared distance to
   attention's point, and of the sizes of differences from its weights. */

void fenchel_exact_point(
    int64_t rows, int64_t each, int64_t n, float alpha, shared log_preference, const float *scores, const float *first,
    const float *x, const float *potential, float *weights, float *sums, int threads
) {
    ROWS
    for (int64_t i = 0; i < rows; i++) {
        const float *restrict preference = floats(log_preference, i, each);
        const float *restrict s = scores + i * n, *restrict q = first + i * n;
        const float *restrict y = x + i * n, *restrict v = potential + i * n;
        float *restrict p = weights + i * n;
        double along = 0, moved = 0, apart = 0;
        SUM(along, moved)
        for (int64_t j = 0; j < n; j++) {
            p[j] = preference[j] + alpha * v[j];
            along += (double)y[j] * s[j];
            moved += (double)y[j] * (v[j] - s[j]);
        }
        float scale = exponentials_float(p, n);
        SUM(apart)
        for (int64_t j = 0; j < n; j++) {
            p[j] *= scale;
            apart += __builtin_fabsf(p[j] - q[j]);
        }
        sums[i] = (float)(2 * along + moved);
        sums[rows + i] = (float)moved;
        sums[2 * rows + i] = (float)apart;
    }
}

/* Of the exact mean and attention's, sums (3, rows): their squared distance, the weighted products of templates with
   their centre, and the squared norm of the exact one less the centre. */

void fenchel_mean_error(
    int64_t rows, int64_t each, int64_t n, shared rest, shared lifted_rest, shared centre, const float *scores,
    const float *residual, const float *lifted_residual, const float *mean, const float *image, const float *weights,
    float *sums, int threads
) {
    ROWS
    for (int64_t i = 0; i < rows; i++) {
        const float *restrict u = floats(rest, i, each), *restrict lu = floats(lifted_rest, i, each);
        const float *restrict c = floats(centre, i, each), *restrict s = scores + i * n;
        const float *restrict r = residual + i * n, *restrict l = lifted_residual + i * n;
        const float *restrict m = mean + i * n, *restrict w = image + i * n, *restrict p = weights + i * n;
        double error = 0, along = 0, square = 0;
        SUM(error, along, square)
        for (int64_t j = 0; j < n; j++) {
            float moved = w[j] - s[j];
            error += (double)(u[j] - m[j] - r[j]) * (moved - l[j]);
            along += (double)p[j] * c[j];
            square += (double)m[j] * (lu[j] - moved);
        }
        sums[i] = (float)error;
        sums[rows + i] = (float)along;
        sums[2 * rows + i] = (float)square;
    }
}

/* Squared distances of points from others, given the potentials of the one and the lifts of the other. */

void fenchel_distance(
    int64_t rows, int64_t n, const float *scores, const float *x, const float *potential, const float *other,
    const float *lifted_other, float *square, int threads
) {
    ROWS
    for (int64_t i = 0; i < rows; i++) {
        const float *restrict s = scores + i * n, *restrict y = x + i * n, *restrict v = potential + i * n;
        const float *restrict o = other + i * n, *restrict l = lifted_other + i * n;
        double sum = 0;
        SUM(sum)
        for (int64_t j = 0; j < n; j++) sum += (double)(y[j] - o[j]) * (v[j] - s[j] - l[j]);
        square[i] = (float)sum;
    }
}
