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

inline void sums_of(const Buffers& at, std::int64_t size, real eps, real* sums) {
    real lanes[NUM_QUANTITIES][LANES] = {};
    const auto add = [&](std::int64_t i, int lane) {
        const real g = at.gradient[i], u = at.update[i], w = at.weight[i];
        lanes[GRADIENT][lane] += g * g, lanes[UPDATE][lane] += u * u, lanes[WEIGHT][lane] += w * w;
    };
    const auto add_moments = [&](std::int64_t i, int lane, real root) {
        // As torch.maximum: NaN if either is.
        const real floor = eps != eps || eps > root ? eps : root, ratio = at.gradient[i] / floor;
        lanes[SECOND][lane] += at.second[i], lanes[BELOW][lane] += root < eps ? 1 : 0;
        lanes[RELATIVE][lane] += ratio * ratio;
    };
    const auto add_direction = [&](std::int64_t i, int lane, real root) {
        const real quotient = at.first[i] / root;
        // Both are zero in a coordinate without a gradient so far.
        const real direction = quotient == quotient ? quotient : 0;
        lanes[DIRECTION][lane] += direction * direction;
        lanes[SATURATION][lane] += std::fabs(direction) > SATURATED ? 1 : 0;
    };
    const auto pass = [&](const auto& take) {
        std::int64_t i = 0;
        for (; i + LANES <= size; i += LANES)
            for (int lane = 0; lane < LANES; ++lane) take(i + lane, lane);
        for (; i < size; ++i) take(i, 0);
    };
    if (!at.second) {
        pass(add);
    } else if (!at.first) {
        pass([&](std::int64_t i, int lane) { add(i, lane), add_moments(i, lane, std::sqrt(at.second[i])); });
    } else {
        pass([&](std::int64_t i, int lane) {
            const real root = std::sqrt(at.second[i]);
            add(i, lane), add_moments(i, lane, root), add_direction(i, lane, root);
        });
    }
    for (int quantity = 0; quantity < NUM_QUANTITIES; ++quantity)
        sums[quantity] = sum_of(LANES, [&](int lane) { return lanes[quantity][lane]; });
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
            sweep::sums_of(one, ends[t] - starts[t], eps[r], of_weight);
            for (int quantity = 0; quantity < sweep::NUM_QUANTITIES; ++quantity)
                sums[(quantity * members + r) * weights + t] = of_weight[quantity];
        }
}
