/* What passes over rows are written with. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FENCHEL_PRAGMA(...) _Pragma(#__VA_ARGS__)
#define SIMD _Pragma("omp simd")
#define SUM(...) FENCHEL_PRAGMA(omp simd reduction(+ : __VA_ARGS__))
#define GREATEST(name) FENCHEL_PRAGMA(omp simd reduction(max : name))

/* Rows of groups of `each` rows; one that is shared has stride 0. */

typedef struct {
    const void *data;
    int64_t group, row;
} shared;

/* e^x where that is not above the largest number, to 2 units in the last place; 0 below the logarithm of the least normal
   number. The multiple k of log 2 nearest to x is in the last bits of t. */

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
