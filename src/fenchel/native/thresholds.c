/* Sparse weights p_i = w_i [x_i - tau]_+^(1/a) that sum to one, a row after the other.

   The twin of fenchel/closeness/threshold.py, which says why Newton's method on (sum p)^a rises to the root. Rows of
   float32 are computed in double. Entries below where the method starts are outside of the support: the others, few as a
   rule, are gathered once, and the steps go through those alone. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FENCHEL_PRAGMA(...) _Pragma(#__VA_ARGS__)
#define SIMD _Pragma("omp simd")
#define SUM(...) FENCHEL_PRAGMA(omp simd reduction(+ : __VA_ARGS__))

typedef struct {
    const void *data;
    int64_t group, row;
} shared;

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

/* e^x where that is neither above the largest nor below the least normal number; 0 below. */

static inline double exp_double(double x) {
    const double shift = 6755399441055744.0; /* 1.5 * 2^52 */
    double t = x * 1.4426950408889634 + shift, k = t - shift;
    double r = x - k * 0.693147180369123816490 - k * 1.90821492927058770002e-10;
    double y = 1.0 / 6227020800.0;
    y = y * r + 1.0 / 479001600.0;
    y = y * r + 1.0 / 39916800.0;
    y = y * r + 1.0 / 3628800.0;
    y = y * r + 1.0 / 362880.0;
    y = y * r + 1.0 / 40320.0;
    y = y * r + 1.0 / 5040.0;
    y = y * r + 1.0 / 720.0;
    y = y * r + 1.0 / 120.0;
    y = y * r + 1.0 / 24.0;
    y = y * r + 1.0 / 6.0;
    y = y * r + 0.5;
    y = y * (r * r) + r + 1.0;
    uint64_t bits;
    double power;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits << 52) + 0x3ff0000000000000u;
    memcpy(&power, &bits, sizeof power);
    return x < -708.0 ? 0.0 : y * power;
}

/* Differences that are left, their weights (or NULL: all 1), and scratch of the same length. */

typedef struct {
    double *x, *w, *q;
    int64_t count;
    double a;
} entries;

/* S and Q at tau. */

static inline void sums_of(const entries *e, double tau, double *total, double *slope) {
    const double *restrict x = e->x, *restrict w = e->w;
    double *restrict q = e->q;
    double s = 0, d = 0, power = 1 / e->a - 1;
    int64_t n = e->count;
    if (e->a == 1) {
        SUM(s, d)
        for (int64_t i = 0; i < n; i++) {
            double t = x[i] - tau, in = t > 0 ? w[i] : 0;
            s += in * t;
            d += in;
        }
    } else if (e->a == 0.5) {
        SUM(s, d)
        for (int64_t i = 0; i < n; i++) {
            double t = x[i] - tau, in = t > 0 ? w[i] * t : 0;
            s += in * t;
            d += in;
        }
    } else {
        SIMD
        for (int64_t i = 0; i < n; i++) {
            double t = x[i] - tau;
            q[i] = t > 0 ? w[i] * exp_double(power * log_double(t)) : 0;
        }
        SUM(s, d)
        for (int64_t i = 0; i < n; i++) {
            s += q[i] * (x[i] - tau);
            d += q[i];
        }
    }
    *total = s;
    *slope = d;
}

static inline double step_of(double a, double total, double slope) {
    if (a == 1) return (total - 1) / slope;
    if (a == 0.5) return (total - __builtin_sqrt(total)) / slope;
    return (total - exp_double((1 - a) * log_double(total))) / slope;
}

enum { MOST = 100 };

/* Newton's method; leaves weights in q. */

static inline void weigh(const entries *e) {
    const double eps = 2.220446049250313e-16;
    const double *restrict x = e->x, *restrict w = e->w;
    double *restrict q = e->q;
    int64_t n = e->count;
    double high = 0, tau = 0, step = 0;
    for (int64_t i = 0; i < n; i++) high = x[i] > high ? x[i] : high;
    double low = -high;
    for (int k = 0; k < MOST; k++) {
        double total, slope;
        sums_of(e, tau, &total, &slope);
        step = step_of(e->a, total, slope);
        double size = __builtin_fabs(step);
        if (size <= 8 * eps * total / slope || size <= eps * tau || high - low <= eps * high || total != total) break;
        if (total >= 1) low = tau;
        else high = tau;
        double following = tau + step;
        tau = following >= low && following <= high ? following : (low + high) / 2;
    }
    double power = 1 / e->a;
    if (step != step) {
        for (int64_t i = 0; i < n; i++) q[i] = step;
    } else if (e->a == 1) {
        SIMD
        for (int64_t i = 0; i < n; i++) {
            double t = x[i] - tau, last = t - step;
            q[i] = t > 0 && last > 0 ? w[i] * last : 0;
        }
    } else if (e->a == 0.5) {
        SIMD
        for (int64_t i = 0; i < n; i++) {
            double t = x[i] - tau, last = t - step;
            q[i] = t > 0 && last > 0 ? w[i] * last * last : 0;
        }
    } else {
        SIMD
        for (int64_t i = 0; i < n; i++) {
            double t = x[i] - tau, last = t - step;
            q[i] = t > 0 && last > 0 ? w[i] * exp_double(power * log_double(last)) : 0;
        }
    }
}

/* f: scores; base: what is added to a f, -inf where masked; weight: w; whole: differences at which a weight is 1, that is
   w^-a. Those that are NULL are 0, 1 and 1. scratch: 4n doubles a thread. */

#define THRESHOLDS(NAME, REAL)                                                                                         \
    static void NAME##_row(                                                                                            \
        int64_t n, double a, const REAL *restrict f, const REAL *restrict base, const REAL *restrict weight,           \
        const REAL *restrict whole, REAL *restrict p, double *scratch                                                  \
    ) {                                                                                                                \
        double *all = scratch, most = -__builtin_inf();                                                                \
        entries e = {scratch + n, scratch + 2 * n, scratch + 3 * n, 0, a};                                             \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            double x = a * (double)f[i];                                                                               \
            all[i] = base ? x + (double)base[i] : x;                                                                   \
        }                                                                                                              \
        int64_t first = 0;                                                                                             \
        if (whole) {                                                                                                   \
            for (int64_t i = 0; i < n; i++)                                                                            \
                if (all[i] - whole[i] > most) most = all[i] - whole[i], first = i;                                     \
        } else {                                                                                                       \
            FENCHEL_PRAGMA(omp simd reduction(max : most))                                                             \
            for (int64_t i = 0; i < n; i++) most = all[i] > most ? all[i] : most;                                      \
        }                                                                                                              \
        double pivot = whole ? all[first] : most, added = whole ? (double)whole[first] : 1;                            \
        int64_t k = 0;                                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            double x = (all[i] - pivot) + added;                                                                       \
            e.x[k] = x;                                                                                                \
            e.w[k] = weight ? (double)weight[i] : 1;                                                                   \
            k += !(x <= 0);                                                                                            \
        }                                                                                                              \
        e.count = k;                                                                                                   \
        weigh(&e);                                                                                                     \
        k = 0;                                                                                                         \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            int in = !((all[i] - pivot) + added <= 0);                                                                 \
            p[i] = in ? (REAL)e.q[k] : 0;                                                                              \
            k += in;                                                                                                   \
        }                                                                                                              \
    }                                                                                                                  \
    void NAME(                                                                                                         \
        int64_t rows, int64_t each, int64_t n, double a, const REAL *f, shared base, shared weight, shared whole,      \
        REAL *p, double *scratch, int threads                                                                          \
    ) {                                                                                                                \
        FENCHEL_PRAGMA(omp parallel for schedule(static) num_threads(threads) if (threads > 1))                        \
        for (int part = 0; part < threads; part++)                                                                     \
            for (int64_t i = rows * part / threads; i < rows * (part + 1) / threads; i++)                              \
                NAME##_row(                                                                                            \
                    n, a, f + i * n, row_of(base, i, each, sizeof(REAL)), row_of(weight, i, each, sizeof(REAL)),       \
                    row_of(whole, i, each, sizeof(REAL)), p + i * n, scratch + part * 4 * n                            \
                );                                                                                                     \
    }

THRESHOLDS(fenchel_thresholds_float, float)
THRESHOLDS(fenchel_thresholds_double, double)
