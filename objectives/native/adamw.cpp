// AdamW's moments and step in one pass over memory, as objectives/optimizers/rules/adamw.py computes them; the root is
// rounded correctly, which torch's is not everywhere. And whole steps of the optimizer, with clipping and decay, as
// objectives/optimizers/packed_optimizer.py takes them one after the other.

#include "elementwise.hpp"

namespace sweep {
namespace {

// As torch.lerp: from the nearer end, by one fused product and sum where the processor has it.
inline real moved(real start, real end, real weight) {
    const bool is_near = weight < real(0.5);
    const real factor = is_near ? weight : weight - 1, base = is_near ? start : end;
#ifdef __FMA__
    return std::fma(factor, end - start, base);
#else
    const real product = factor * (end - start);
    return base + product;
#endif
}

inline real norm_of(const real* values, std::int64_t n) {
    return std::sqrt(sum_of(static_cast<int>(n), [&](int i) { return values[i] * values[i]; }));
}

// The update of one member, in place of its gradient.
inline void update(
    std::int64_t n, real* gradient, real* first, real* second, real first_weight, real second_weight, real eps,
    real step_size) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) {
        const real square = gradient[i] * gradient[i];
        first[i] = moved(first[i], gradient[i], first_weight);
        second[i] = moved(second[i], square, second_weight);
        const real denominator = std::sqrt(second[i]) + eps;
        gradient[i] = first[i] / denominator * step_size;
    }
}

}  // namespace

// The members of a pack and their numbers in the next steps; the fields are in objectives/optimizers/native_optimizer.py,
// too. The first four are (K, n), alive is (K), the others are (T, K). kept is null without weight decay.
struct Steps {
    std::int64_t members, n;
    real *params, *first, *second;
    std::uint8_t* alive;
    const real *clip, *first_weight, *second_weight, *eps, *step_size, *kept;
    real *losses, *grad_norms, *update_norms;
};

}  // namespace sweep

// The buffers are (K, n), the numbers (K). The update takes the place of the gradient.
extern "C" void adamw_update(
    std::int64_t members, std::int64_t n, sweep::real* gradient, sweep::real* first, sweep::real* second,
    const sweep::real* first_weight, const sweep::real* second_weight, const sweep::real* eps,
    const sweep::real* step_size) {
    for (std::int64_t k = 0; k < members; ++k, gradient += n, first += n, second += n)
        sweep::update(n, gradient, first, second, first_weight[k], second_weight[k], eps[k], step_size[k]);
}

// The norms (K) of values (K, n).
extern "C" void adamw_norms(std::int64_t members, std::int64_t n, const sweep::real* values, sweep::real* norms) {
    for (std::int64_t k = 0; k < members; ++k) norms[k] = sweep::norm_of(values + k * n, n);
}

// The step number t of the member k, whose loss and gradient are given: as gpt_train in gpt.cpp calls it.
extern "C" void adamw_step(
    const sweep::Steps* steps, std::int64_t t, std::int64_t k, sweep::real loss, sweep::real* gradient) {
    using sweep::real;
    const std::int64_t n = steps->n, at = t * steps->members + k;
    real* params = steps->params + k * n;
    const real norm = sweep::norm_of(gradient, n);
    steps->losses[at] = loss, steps->grad_norms[at] = norm;
    const bool is_alive = steps->alive[k] && std::isfinite(loss) && std::isfinite(norm);
    steps->alive[k] = is_alive;
    const real share = steps->clip[at] / (norm + real(1e-6));
    if (!is_alive)
        std::fill(gradient, gradient + n, real(0));
    else if (share < 1)
        for (std::int64_t i = 0; i < n; ++i) gradient[i] *= share;
    sweep::update(
        n, gradient, steps->first + k * n, steps->second + k * n, steps->first_weight[at], steps->second_weight[at],
        steps->eps[at], steps->step_size[at]);
    if (is_alive) {
        if (steps->kept && steps->kept[at] != 1)
            for (std::int64_t i = 0; i < n; ++i) params[i] *= steps->kept[at];
        for (std::int64_t i = 0; i < n; ++i) params[i] -= gradient[i];
    } else {
        std::fill(gradient, gradient + n, real(0));
    }
    steps->update_norms[at] = sweep::norm_of(gradient, n);
}

// The only step of all members, whose losses are (K) and gradients (K, n).
extern "C" void adamw_step_of_all(const sweep::Steps* steps, const sweep::real* losses, sweep::real* gradient) {
    for (std::int64_t k = 0; k < steps->members; ++k) adamw_step(steps, 0, k, losses[k], gradient + k * steps->n);
}
