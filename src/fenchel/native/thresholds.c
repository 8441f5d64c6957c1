/* Sparse weights p_i = w_i [x_i - tau]_+^(1/a) that sum to one, a row after the other.

   The twin of fenchel/closeness/threshold.py, which says why Newton's method on (sum p)^a rises to the root. Rows of
   float32 are computed in double. Where powers have to be computed, entries below where the method starts, which are
   outside of the support, are left out once, and the steps go through the others, few as a rule. */

#include "passes.h"

static const void *row_of(shared s, int64_t i, int64_t each, int64_t size) {
    return s.data ? (const char *)s.data + (i / each * s.group + i % each * s.row) * size : NULL;
}

/* log x for x > 0, normal; -inf below the least normal number. */

static inline double log_double(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    /* The mantissa in [sqrt(1/2), sqrt(2)), the exponent by what was taken off. */
    uint64_t shifted = bits + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    double k = (double)(int32_t)(shifted >> 52) - 1023.0;
    uint64_t kept = (shifted & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu;
    double m;
    memcpy(&m, &kept, sizeof m);
    double s = (m - 1) / (m + 1), z = s * s;
    double y = 1.0 / 21;
    y = y * z + 1.0 / 19;
    y = y * z + 1.0 / 17;
    y = y * z + 1.0 / 15;
    y = y * z + 1.0 / 13;
    y = y * z + 1.0 / 11;
    y = y * z + 1.0 / 9;
    y = y * z + 1.0 / 7;
    y = y * z + 1.0 / 5;
    y = y * z + 1.0 / 3;
    y = 2 * s + 2 * s * (y * z);
    double found = y + k * 1.90821492927058770002e-10 + k * 0.693147180369123816490;
    return x < 2.2250738585072014e-308 ? -__builtin_inf() : found;
}

/* Differences x, their weights w, and scratch of the same length, in which what is found are left. Those w that
   are all 1 are multiplied with as well: without that, compilers branch where they could select. */

typedef struct {
    double *x, *w, *q;
    int64_t count;
    double a;
} entries;

enum { SIMPLEX, SQUARES, POWERS }; /* a = 1, 1/2, any */

/* S and Q at tau. `kind` is known where this is compiled. */

static inline void sums_of(const entries *e, double tau, int kind, double *total, double *slope) {
    const double *restrict x = e->x, *restrict w = e->w;
    double *restrict q = e->q;
    double s = 0, d = 0, power = 1 / e->a - 1;
    int64_t n = e->count;
    if (kind == POWERS) {
        SIMD
        for (int64_t i = 0; i < n; i++) {
            double t = x[i] - tau;
            double raised = exp_double(power * log_double(t > 0 ? t : 0));
            q[i] = w[i] * raised;
        }
        SUM(s, d)
        for (int64_t i = 0; i < n; i++) {
            s += q[i] * (x[i] - tau);
            d += q[i];
        }
    } else {
        SUM(s, d)
        for (int64_t i = 0; i < n; i++) {
            double t = x[i] - tau;
            t = t > 0 ? t : 0;
            s += w[i] * (kind == SIMPLEX ? t : t * t);
            d += w[i] * (kind == SIMPLEX ? (double)(t > 0) : t);
        }
    }
    *total = s;
    *slope = d;
}

/* Moves differences by what is taken off and added, and gives S and Q at 0. */

static inline void shift(entries *e, double off, double added, int kind, double *total, double *slope) {
    double *restrict x = e->x;
    const double *restrict w = e->w;
    double s = 0, d = 0;
    int64_t n = e->count;
    SUM(s, d)
    for (int64_t i = 0; i < n; i++) {
        double t = (x[i] - off) + added;
        x[i] = t;
        t = t > 0 ? t : 0;
        s += w[i] * (kind == SIMPLEX ? t : t * t);
        d += w[i] * (kind == SIMPLEX ? (double)(t > 0) : t);
    }
    *total = s;
    *slope = d;
}

static inline double step_of(double a, int kind, double total, double slope) {
    if (kind == SIMPLEX) return (total - 1) / slope;
    if (kind == SQUARES) return (total - __builtin_sqrt(total)) / slope;
    return (total - exp_double((1 - a) * log_double(total))) / slope;
}

enum { MOST = 100 };

/* Newton's method; leaves weights in q. */

static inline void weigh_as(entries *e, double off, double added, int kind) {
    const double eps = 2.220446049250313e-16;
    double high = added, tau = 0, step = 0, total, slope;
    int64_t n = e->count;
    if (kind == POWERS)
        sums_of(e, 0, kind, &total, &slope);
    else
        shift(e, off, added, kind, &total, &slope);
    const double *restrict x = e->x, *restrict w = e->w;
    double *restrict q = e->q;
    GREATEST(high)
    for (int64_t i = 0; i < n; i++) high = x[i] > high ? x[i] : high;
    double low = -high;
    for (int k = 0; k < MOST; k++) {
        if (k > 0) sums_of(e, tau, kind, &total, &slope);
        step = step_of(e->a, kind, total, slope);
        double size = __builtin_fabs(step);
        if (size <= 8 * eps * total / slope || size <= eps * tau || high - low <= eps * high) break;
        if (total >= 1) low = tau;
        else high = tau;
        double following = tau + step;
        tau = following >= low && following <= high ? following : (low + high) / 2;
    }
    double power = 1 / e->a;
    SIMD
    for (int64_t i = 0; i < n; i++) {
        /* Those that were 0 stay 0. */
        double t = x[i] - tau, last = t > 0 ? t - step : 0;
        last = last > 0 ? last : 0;
        double raised = kind == SIMPLEX ? last : kind == SQUARES ? last * last : exp_double(power * log_double(last));
        q[i] = w[i] * raised;
    }
}

static void weigh(entries *e, double off, double added, int kind) {
    if (kind == SIMPLEX) weigh_as(e, off, added, SIMPLEX);
    else if (kind == SQUARES) weigh_as(e, off, added, SQUARES);
    else weigh_as(e, off, added, POWERS);
}

/* a: of all rows, or of each in `orders`; f: scores; base: what is added to a f, -inf where masked; weight: w; whole: differences at which a weight is 1, w^-a.
   Those that are NULL are 0, 1 and 1. scratch: 3n doubles a thread. */

#define THRESHOLDS(NAME, REAL)                                                                                         \
    static void NAME##_row(                                                                                            \
        int64_t n, double a, const REAL *restrict f, const REAL *restrict base, const REAL *restrict weight,           \
        const REAL *restrict whole, REAL *restrict p, double *restrict scratch                                         \
    ) {                                                                                                                \
        double *restrict x = scratch, *restrict w = scratch + n, most = -__builtin_inf(), sum = 0;                     \
        int kind = a == 1 ? SIMPLEX : a == 0.5 ? SQUARES : POWERS;                                                     \
        if (base) {                                                                                                    \
            SIMD                                                                                                       \
            for (int64_t i = 0; i < n; i++) x[i] = a * (double)f[i] + (double)base[i];                                 \
        } else {                                                                                                       \
            SIMD                                                                                                       \
            for (int64_t i = 0; i < n; i++) x[i] = a * (double)f[i];                                                   \
        }                                                                                                              \
        FENCHEL_PRAGMA(omp simd reduction(max : most) reduction(+ : sum))                                              \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            double t = x[i];                                                                                           \
            most = t > most ? t : most;                                                                                \
            sum += t == t ? 0.0 : 1.0;                                                                                 \
        }                                                                                                              \
        if (sum > 0 || !(most > -__builtin_inf() && most < __builtin_inf())) {                                         \
            for (int64_t i = 0; i < n; i++) p[i] = (REAL)__builtin_nan("");                                            \
            return;                                                                                                    \
        }                                                                                                              \
        double pivot = most, added = 1;                                                                                \
        if (whole) {                                                                                                   \
            most = -__builtin_inf();                                                                                   \
            GREATEST(most)                                                                                             \
            for (int64_t i = 0; i < n; i++) most = x[i] - whole[i] > most ? x[i] - whole[i] : most;                    \
            for (int64_t i = 0; i < n; i++)                                                                            \
                if (x[i] - whole[i] == most) {                                                                         \
                    pivot = x[i], added = whole[i];                                                                    \
                    break;                                                                                             \
                }                                                                                                      \
            SIMD                                                                                                       \
            for (int64_t i = 0; i < n; i++) w[i] = weight[i];                                                          \
        } else {                                                                                                       \
            SIMD                                                                                                       \
            for (int64_t i = 0; i < n; i++) w[i] = 1;                                                                  \
        }                                                                                                              \
        entries e = {x, w, scratch + 2 * n, n, a};                                                                     \
        if (kind != POWERS) {                                                                                          \
            weigh(&e, pivot, added, kind);                                                                             \
            SIMD                                                                                                       \
            for (int64_t i = 0; i < n; i++) p[i] = (REAL)e.q[i];                                                       \
            return;                                                                                                    \
        }                                                                                                              \
        int64_t k = 0;                                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            double t = (x[i] - pivot) + added;                                                                         \
            int in = !(t <= 0);                                                                                        \
            p[i] = (REAL)in;                                                                                           \
            x[k] = t;                                                                                                  \
            w[k] = w[i];                                                                                               \
            k += in;                                                                                                   \
        }                                                                                                              \
        e.count = k;                                                                                                   \
        weigh(&e, 0, added, kind);                                                                                     \
        k = 0;                                                                                                         \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            int in = p[i] != 0;                                                                                        \
            p[i] = in ? (REAL)e.q[k] : 0;                                                                              \
            k += in;                                                                                                   \
        }                                                                                                              \
    }                                                                                                                  \
    void NAME(                                                                                                         \
        int64_t rows, int64_t each, int64_t n, double a, shared orders, const REAL *f, shared base, shared weight,     \
        shared whole, REAL *p, double *scratch, int threads                                                            \
    ) {                                                                                                                \
        FENCHEL_PRAGMA(omp parallel for schedule(static) num_threads(threads) if (threads > 1))                        \
        for (int part = 0; part < threads; part++)                                                                     \
            for (int64_t i = rows * part / threads; i < rows * (part + 1) / threads; i++) {                            \
                const double *own = row_of(orders, i, each, sizeof(double));                                           \
                NAME##_row(                                                                                            \
                    n, own ? *own : a, f + i * n, row_of(base, i, each, sizeof(REAL)),                                 \
                    row_of(weight, i, each, sizeof(REAL)), row_of(whole, i, each, sizeof(REAL)), p + i * n,            \
                    scratch + part * 3 * n                                                                             \
                );                                                                                                     \
            }                                                                                                          \
    }

THRESHOLDS(fenchel_thresholds_float, float)
THRESHOLDS(fenchel_thresholds_double, double)

/* What a gradient g of the weights is to the scores in Bregman's sense, y = q (g - <q, g>/Q), at a = 1, or 1/2 where
   `squares`. */

#define DIFFERENTIATED(NAME, REAL, ROOT)                                                                               \
    void NAME(int64_t rows, int64_t n, int squares, const REAL *weights, const REAL *gradient, REAL *y, int threads) { \
        FENCHEL_PRAGMA(omp parallel for schedule(static) num_threads(threads) if (threads > 1))                        \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            const REAL *restrict p = weights + i * n, *restrict g = gradient + i * n;                                  \
            REAL *restrict q = y + i * n;                                                                              \
            double along = 0, mass = 0;                                                                                \
            if (squares) {                                                                                             \
                SIMD                                                                                                   \
                for (int64_t j = 0; j < n; j++) q[j] = ROOT(p[j]);                                                     \
            } else {                                                                                                   \
                SIMD                                                                                                   \
                for (int64_t j = 0; j < n; j++) q[j] = (REAL)(p[j] > 0);                                               \
            }                                                                                                          \
            SUM(along, mass)                                                                                           \
            for (int64_t j = 0; j < n; j++) {                                                                          \
                along += (double)q[j] * (double)g[j];                                                                  \
                mass += (double)q[j];                                                                                  \
            }                                                                                                          \
            REAL level = (REAL)(along / mass);                                                                         \
            SIMD                                                                                                       \
            for (int64_t j = 0; j < n; j++) q[j] *= g[j] - level;                                                      \
        }                                                                                                              \
    }

DIFFERENTIATED(fenchel_differentiated_float, float, __builtin_sqrtf)
DIFFERENTIATED(fenchel_differentiated_double, double, __builtin_sqrt)
