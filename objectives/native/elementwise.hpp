// Functions of single numbers, written without branches so that the compiler turns loops over them into vectors.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "matrix.hpp"

// A call in a loop ends its vectors, and in a shared library compilers think twice before they put one in its place.
#define ALWAYS_INLINE __attribute__((always_inline)) inline

namespace sweep {

// The functions of floats are for a number and for a vector: Int has the bits of Real.
template <typename Int, typename Real>
ALWAYS_INLINE Int bits_of(Real x) {
    Int bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
template <typename Real, typename Int>
ALWAYS_INLINE Real from_bits(Int bits) {
    Real x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

// exp(x) for -87 <= x <= 88, and 0 below: x = n log 2 + r with |r| <= log(2) / 2, and the Taylor series of exp(r), whose
// seventh term is below 1e-8. A sum with 3 * 2^22 has n in its last bits.
template <typename Int, typename Real>
ALWAYS_INLINE Real exponential_up_to_88(Real x) {
    const Real shifted = x * 1.442695041f + (12582912.0f + 127), n = shifted - (12582912.0f + 127);
    const Real r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // log 2 in two parts, so that r keeps its digits
    Real p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = (p * r + 1.0f) * r + 1.0f;
    const Real power = from_bits<Real>(bits_of<Int>(shifted) << 23);
    return x < -87.0f ? Real{} : p * power;
}

// exp(x) of a number x <= 0, or not a number.
ALWAYS_INLINE float exponential_below(float x) { return exponential_up_to_88<std::uint32_t>(x); }
ALWAYS_INLINE double exponential_below(double x) { return std::exp(x); }
ALWAYS_INLINE float exponential(float x) { return x > 88.0f ? __builtin_inff() : exponential_below(x); }
ALWAYS_INLINE double exponential(double x) { return std::exp(x); }

typedef std::uint32_t bits_t __attribute__((vector_size(BYTES_OF_VECTOR)));
ALWAYS_INLINE vector_t exponential_below(vector_t x) {
    if constexpr (sizeof(real) == sizeof(float)) {
        return exponential_up_to_88<bits_t>(x);
    } else {
        for (int lane = 0; lane < LANES; ++lane) x[lane] = std::exp(x[lane]);
        return x;
    }
}

// The share of the standard normal distribution below x; ``bell`` is exp(-x^2 / 2).
// 1 - erf(z) = (a1 t + ... + a5 t^5) exp(-z^2) with t = 1 / (1 + p z), within 1.5e-7 (Abramowitz & Stegun, 7.1.26).
template <typename Int, typename Real>
ALWAYS_INLINE Real normal_share_by_series(Real x, Real bell) {
    const Real size = from_bits<Real>(bits_of<Int>(x) & 0x7fffffffu), t = 1.0f / (1.0f + 0.23164189f * size);
    const Real half_of_series =
        ((((0.5307027145f * t - 0.7265760135f) * t + 0.7107068705f) * t - 0.142248368f) * t + 0.127414796f) * t;
    const Real beyond = half_of_series * bell;  // the share beyond |x|
    return x < 0.0f ? beyond : 1.0f - beyond;
}
ALWAYS_INLINE float normal_share(float x, float bell) { return normal_share_by_series<std::uint32_t>(x, bell); }
ALWAYS_INLINE double normal_share(double x, double) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }
ALWAYS_INLINE vector_t normal_share(vector_t x, vector_t bell) {
    if constexpr (sizeof(real) == sizeof(float)) {
        return normal_share_by_series<bits_t>(x, bell);
    } else {
        for (int lane = 0; lane < LANES; ++lane) x[lane] = normal_share(x[lane], bell[lane]);
        return x;
    }
}

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
