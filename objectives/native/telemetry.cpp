// Sums over the weights of members, as objectives/instruments/telemetry.py defines them, in one pass over memory.

#include "elementwise.hpp"

namespace sweep {
namespace {

constexpr real SATURATED = real(0.9);

// One of the quantities below at a time is summed in a fixed order, whatever other members there are.
enum Quantity { GRADIENT, UPDATE, WEIGHT, SECOND, RELATIVE, BELOW, DIRECTION, SATURATION, NUM_QUANTITIES };

}  // namespace

// The buffers are (R, n); the moments may be null.
struct Buffers {
    const real *gradient, *update, *weight, *first, *second;
};

namespace {

inline real root_of(real square) { return std::sqrt(square); }
inline vector_t root_of(vector_t square) {
    real lanes[LANES];
    store(lanes, square);
    for (int lane = 0; lane < LANES; ++lane) lanes[lane] = std::sqrt(lanes[lane]);
    return load(lanes);
}

// Of a vector of numbers, or of one: a loop over single ones is not always made of vectors by compilers.
template <bool HAS_SECOND, bool HAS_FIRST, typename Numbers, typename Load>
inline void add(const Buffers& at, Numbers eps, Numbers* sums, Load load) {
    const Numbers none = {}, one = none + real(1), g = load(at.gradient), u = load(at.update), w = load(at.weight);
    sums[GRADIENT] += g * g, sums[UPDATE] += u * u, sums[WEIGHT] += w * w;
    if constexpr (HAS_SECOND) {
        const Numbers square = load(at.second), root = root_of(square);
        // As torch.maximum: NaN if either is.
        const Numbers ratio = g / ((eps > root) | (eps != eps) ? eps : root);
        sums[SECOND] += square, sums[BELOW] += root < eps ? one : none, sums[RELATIVE] += ratio * ratio;
        if constexpr (HAS_FIRST) {
            const Numbers quotient = load(at.first) / root;
            // Both are zero in a coordinate without a gradient so far.
            const Numbers direction = quotient == quotient ? quotient : none;
            sums[DIRECTION] += direction * direction;
            sums[SATURATION] += (direction > SATURATED) | (direction < -SATURATED) ? one : none;
        }
    }
}

template <bool HAS_SECOND, bool HAS_FIRST>
inline void sums_of(const Buffers& at, std::int64_t size, real eps, real* sums) {
    vector_t lanes[NUM_QUANTITIES] = {};
    std::int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        add<HAS_SECOND, HAS_FIRST>(at, eps - vector_t{}, lanes, [&](const real* from) { return load(from + i); });
    for (int quantity = 0; quantity < NUM_QUANTITIES; ++quantity) sums[quantity] = lanes[quantity][0];
    for (; i < size; ++i)
        add<HAS_SECOND, HAS_FIRST>(at, eps, sums, [&](const real* from) { return from[i]; });
    for (int quantity = 0; quantity < NUM_QUANTITIES; ++quantity) {
        lanes[quantity][0] = sums[quantity];
        sums[quantity] = sum_of(LANES, [&](int lane) { return lanes[quantity][lane]; });
    }
}

}  // namespace
}  // namespace sweep

// sums is (quantities, R, T), for the columns from starts to ends of each of the T weights. The first moment is null
// if the second one is.
extern "C" void telemetry_sums(
    std::int64_t members, std::int64_t n, std::int64_t weights, const std::int64_t* starts, const std::int64_t* ends,
    const sweep::Buffers* buffers, const sweep::real* eps, sweep::real* sums) {
    using sweep::real;
    for (std::int64_t r = 0; r < members; ++r)
        for (std::int64_t t = 0; t < weights; ++t) {
            const std::int64_t at = r * n + starts[t];
            const auto from = [&](const real* buffer) { return buffer ? buffer + at : nullptr; };
            const sweep::Buffers one = {from(buffers->gradient), from(buffers->update), from(buffers->weight),
                                        from(buffers->first), from(buffers->second)};
            real of_weight[sweep::NUM_QUANTITIES];
            const auto sums_of = !one.second ? sweep::sums_of<false, false>
                                 : one.first ? sweep::sums_of<true, true>
                                             : sweep::sums_of<true, false>;
            sums_of(one, ends[t] - starts[t], eps[r], of_weight);
            for (int quantity = 0; quantity < sweep::NUM_QUANTITIES; ++quantity)
                sums[(quantity * members + r) * weights + t] = of_weight[quantity];
        }
}
