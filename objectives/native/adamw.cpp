// AdamW's moments and step in one pass over memory, as objectives/optimizers/rules/adamw.py computes them; the root is
// rounded correctly, which torch's is not everywhere.

#include <cmath>
#include <cstddef>
#include <cstdint>

#ifndef REAL
#define REAL float
#endif

namespace {

using real = REAL;

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

}  // namespace

// The buffers are (K, n), the numbers (K). The update takes the place of the gradient.
extern "C" void adamw_update(
    std::int64_t members, std::int64_t n, real* gradient, real* first, real* second, const real* first_weight,
    const real* second_weight, const real* eps, const real* step_size) {
    for (std::int64_t k = 0; k < members; ++k, gradient += n, first += n, second += n) {
#pragma GCC ivdep
        for (std::int64_t i = 0; i < n; ++i) {
            const real square = gradient[i] * gradient[i];
            first[i] = moved(first[i], gradient[i], first_weight[k]);
            second[i] = moved(second[i], square, second_weight[k]);
            const real denominator = std::sqrt(second[i]) + eps[k];
            gradient[i] = first[i] / denominator * step_size[k];
        }
    }
}
