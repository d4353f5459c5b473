// Functions of single numbers, written without branches so that the compiler turns loops over them into vectors.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "matrix.hpp"

// A call in a loop ends its vectors, and in a shared library compilers think twice before they put one in its place.
#define ALWAYS_INLINE __attribute__((always_inline)) inline

namespace sweep {

// exp(x) of a number or of a vector: x = n log 2 + r with |r| <= log(2) / 2, and a polynomial for exp(r), whose error
// is below 1e-8. Int has the bits of a Real; a sum with 3 * 2^22 has n in its last bits.
template <typename Int, typename Real>
ALWAYS_INLINE Real exponential_by_bits(Real x) {
    const Real shifted = x * 1.442695041f + (12582912.0f + 127), n = shifted - (12582912.0f + 127);
    const Real r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // log 2 in two parts, so that r keeps its digits
    Real p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = (p * r + 1.0f) * r + 1.0f;
    Int bits;
    __builtin_memcpy(&bits, &shifted, sizeof bits);
    bits = bits << 23;
    Real power;
    __builtin_memcpy(&power, &bits, sizeof power);
    const Real zero{}, infinite = zero + __builtin_inff();
    return x < -87.0f ? zero : x > 88.0f ? infinite : p * power;
}
ALWAYS_INLINE float exponential(float x) { return exponential_by_bits<std::uint32_t>(x); }
ALWAYS_INLINE double exponential(double x) { return std::exp(x); }

ALWAYS_INLINE vector_t exponential(vector_t x) {
    if constexpr (sizeof(real) == sizeof(float)) {
        typedef std::uint32_t bits_t __attribute__((vector_size(BYTES_OF_VECTOR)));
        return exponential_by_bits<bits_t>(x);
    } else {
        for (int lane = 0; lane < LANES; ++lane) x[lane] = std::exp(x[lane]);
        return x;
    }
}

// The share of the standard normal distribution below x; ``bell`` is exp(-x^2 / 2).
// 1 - erf(z) = (a1 t + ... + a5 t^5) exp(-z^2) with t = 1 / (1 + p z), within 1.5e-7 (Abramowitz & Stegun, 7.1.26).
ALWAYS_INLINE float normal_share(float x, float bell) {
    const float t = 1.0f / (1.0f + 0.23164189f * __builtin_fabsf(x));
    const float series =
        ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    const float beyond = 0.5f * series * bell;  // the share beyond |x|
    return x < 0 ? beyond : 1.0f - beyond;
}
ALWAYS_INLINE double normal_share(double x, double) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }

// The sum of a vector's numbers, half on half.
template <int COUNT>
ALWAYS_INLINE real sum_of_lanes(typename Vector<COUNT>::type lanes);
template <int... LANE>
ALWAYS_INLINE real sum_of_halves(
    typename Vector<2 * sizeof...(LANE)>::type lanes, std::integer_sequence<int, LANE...>) {
    constexpr int COUNT = sizeof...(LANE);
    using half_t = typename Vector<COUNT>::type;
    return sum_of_lanes<COUNT>(half_t{lanes[LANE]...} + half_t{lanes[COUNT + LANE]...});
}
template <int COUNT>
ALWAYS_INLINE real sum_of_lanes(typename Vector<COUNT>::type lanes) {
    if constexpr (COUNT == 1)
        return lanes[0];
    else
        return sum_of_halves(lanes, std::make_integer_sequence<int, COUNT / 2>());
}

// The sum of term(i) over i < count, in a fixed order: lane by lane, then the lanes. In a loop that adds to an array, or
// to a vector whose halves are then read from memory, the sums would go through memory.
template <typename Term>
inline real sum_of(int count, Term term) {
    vector_t sums{};
    real rest = 0;
    int i = 0;
    for (; i + LANES <= count; i += LANES) {
        real terms[LANES];
        for (int lane = 0; lane < LANES; ++lane) terms[lane] = term(i + lane);
        sums += load(terms);
    }
    for (; i < count; ++i) rest += term(i);
    return sum_of_lanes<LANES>(sums) + rest;
}

}  // namespace sweep
