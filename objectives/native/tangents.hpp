// The parts of a transformer block, each with the derivative of both of its passes along a direction of the weights.
//
// t_x is the derivative of x, and d_x the gradient of the loss at x, so that t_d_x is a product with the Hessian.
#pragma once

#include "parts.hpp"

namespace sweep {

// Numbers at the point, and their derivatives along the vector.
struct Both {
    Buffer here, change;

    template <bool ALONG>
    Buffer& of() { return ALONG ? change : here; }
    template <bool ALONG>
    real* at(std::size_t place = 0) { return of<ALONG>().data() + place; }
    void resize(std::size_t size) { here.resize(size), change.resize(size); }
};

// A weight and its direction, whose gradient is the weight's part of the product.
struct Linear {
    Weight weight, direction;

    void forward_along(const real* in, const real* t_in, int rows, real* t_out) const {
        TIMED(PRODUCTS);
        multiply({t_in, weight.inputs, 1}, rows, weight.forward, t_out, weight.outputs, false);
        multiply({in, weight.inputs, 1}, rows, direction.forward, t_out, weight.outputs, true);
    }
    void back_along(
        const real* in, const real* t_in, const real* d_out, const real* t_d_out, int rows, real* t_d_in,
        Panels& scratch) const {
        direction.back(t_in, d_out, rows, t_d_in, scratch);
        TIMED(PRODUCTS);
        direction.add_gradient(in, t_d_out, rows, scratch);
        multiply({t_d_out, weight.outputs, 1}, rows, weight.backward, t_d_in, weight.inputs, true);
    }
};

// A norm of rows without gaps.
struct CurvedNorm {
    Norm norm;
    const real* t_gain = nullptr;
    real* product = nullptr;
    Buffer d_out, t_normed, t_inverse;

    void forward(const real* in, int rows, int channels, real* out) {
        norm.forward(in, channels, rows, channels, out, channels);
    }
    void back(real* d, int rows, int channels) {
        d_out.assign(d, d + static_cast<std::size_t>(rows) * channels);
        norm.backward(d, channels, rows, channels, d, channels);
    }
    // t_out may be t_in.
    void forward_along(const real* t_in, int rows, int channels, real* t_out) {
        TIMED(NORMS);
        t_normed.resize(norm.normed.size()), t_inverse.resize(rows);
        for (int r = 0; r < rows; ++r, t_in += channels, t_out += channels) {
            const std::size_t row = static_cast<std::size_t>(r) * channels;
            const real *normed = norm.normed.data() + row, inverse = norm.inverse[r];
            real* t = t_normed.data() + row;
            const real mean = norm.has_mean ? sum_of(channels, [&](int c) { return t_in[c]; }) / channels : 0;
            const real along = sum_of(channels, [&](int c) { return normed[c] * t_in[c]; }) / channels;
            t_inverse[r] = -inverse * inverse * along;
#pragma GCC ivdep
            for (int c = 0; c < channels; ++c) {
                t[c] = (t_in[c] - mean - normed[c] * along) * inverse;
                t_out[c] = t[c] * norm.gain[c] + normed[c] * t_gain[c];
            }
        }
    }
    void back_along(real* t_d, int rows, int channels) {
        TIMED(NORMS);
        const real* gain = norm.gain;
        for (int r = 0; r < rows; ++r, t_d += channels) {
            const std::size_t row = static_cast<std::size_t>(r) * channels;
            const real *normed = norm.normed.data() + row, *t = t_normed.data() + row, *d = d_out.data() + row;
            for (int c = 0; c < channels; ++c) product[c] += t_d[c] * normed[c] + d[c] * t[c];
            const auto e = [&](int c) { return d[c] * gain[c]; };
            const auto t_e = [&](int c) { return t_d[c] * gain[c] + d[c] * t_gain[c]; };
            const auto mean_of = [&](auto term) { return sum_of(channels, term) / channels; };
            const real along = mean_of([&](int c) { return e(c) * normed[c]; });
            const real t_along = mean_of([&](int c) { return t_e(c) * normed[c] + e(c) * t[c]; });
            const real mean = norm.has_mean ? mean_of(e) : 0, t_mean = norm.has_mean ? mean_of(t_e) : 0;
            const real inverse = norm.inverse[r], turned = t_inverse[r];
#pragma GCC ivdep
            for (int c = 0; c < channels; ++c)
                t_d[c] = (t_e(c) - t_mean - t[c] * along - normed[c] * t_along) * inverse +
                         (e(c) - mean - normed[c] * along) * turned;
        }
    }
};

// Queries, keys and values of a sequence, or their derivatives.
struct Heads {
    View q, k, v;
};
// Where the gradients of a sequence's queries, keys and values go, in rows that lie ``step`` apart.
struct HeadGradients {
    real *q, *k, *v;
    std::ptrdiff_t step;
};

struct CurvedAttention {
    Attention attention;
    Buffer spread, t_shares;  // the gradient of each share less its mean, and the shares' derivatives, (T, T) each
    Buffer slope, t_slope, mean;  // gradients of scores, and means over attended positions
    Panels panels;

    void resize(int sequences) {
        attention.resize(sequences);
        spread.resize(attention.shares.size()), t_shares.resize(attention.shares.size());
    }
    void forward_along(int sequence, const Heads& at, const Heads& t, real* t_out, std::ptrdiff_t out_step) {
        TIMED(ATTENTION);
        const int T = attention.positions, C = attention.channels;
        mean.resize(T);
        for (int h = 0; h < attention.heads; ++h) {
            const real* share = attention.of(sequence, h);
            real* t_share = attention.of(t_shares, sequence, h);
            const int q = h * C, kv = h / attention.sharing * C;
            scores<Needed::UPPER>(t.k, kv, at.q, q, t_share, false);
            scores<Needed::UPPER>(at.k, kv, t.q, q, t_share, true);
            std::fill(mean.begin(), mean.end(), real(0));
            for (int s = 0; s < T; ++s) {
                const std::size_t row = static_cast<std::size_t>(s) * T;
#pragma GCC ivdep
                for (int t = s - s % LANES; t < T; ++t) {
                    t_share[row + t] *= attention.scale;
                    mean[t] += share[row + t] * t_share[row + t];
                }
            }
            for (int s = 0; s < T; ++s) {
                const std::size_t row = static_cast<std::size_t>(s) * T;
                const int start = s - s % LANES;
                std::fill(t_share + row, t_share + row + start, real(0));  // tiles reach there
#pragma GCC ivdep
                for (int t = start; t < T; ++t) t_share[row + t] = share[row + t] * (t_share[row + t] - mean[t]);
            }
            panels.pack(from(at.v, kv), T, C);
            multiply<Needed::UP_TO_ROW>({t_share, 1, T}, T, panels, t_out + q, out_step, false);
            panels.pack(from(t.v, kv), T, C);
            multiply<Needed::UP_TO_ROW>({share, 1, T}, T, panels, t_out + q, out_step, true);
        }
    }

    // The gradient of a share is taken less the mean of those gradients, not less d_out . out as in training: where
    // one share is 1, as in a member that is lost, the difference is zero to the last digit.
    void back(int sequence, const Heads& at, View d_out, const HeadGradients& d) {
        TIMED(ATTENTION);
        const int T = attention.positions, C = attention.channels;
        resize_scratch();
        for (int h = 0; h < attention.heads; ++h) {
            const real* share = attention.of(sequence, h);
            real* kept = attention.of(spread, sequence, h);
            const int q = h * C, kv = h / attention.sharing * C;
            const bool adds = h % attention.sharing > 0;
            panels.pack(from(d_out, q), T, C);
            multiply<Needed::FROM_ROW>({share, T, 1}, T, panels, d.v + kv, d.step, adds);
            scores<Needed::UPPER>(at.v, kv, d_out, q, kept, false);
            std::fill(mean.begin(), mean.end(), real(0));
            for_shares([&](std::size_t i, int t) { mean[t] += share[i] * kept[i]; });
            for_shares([&](std::size_t i, int t) {
                kept[i] -= mean[t];
                slope[i] = kept[i] * share[i] * attention.scale;
            });
            add_products(slope, at, q, kv, d, false, adds);
        }
    }

    void back_along(
        int sequence, const Heads& at, const Heads& t, View d_out, View t_d_out, const HeadGradients& t_d) {
        TIMED(ATTENTION);
        const int T = attention.positions, C = attention.channels;
        resize_scratch();
        for (int h = 0; h < attention.heads; ++h) {
            const real *share = attention.of(sequence, h), *t_share = attention.of(t_shares, sequence, h);
            const real* kept = attention.of(spread, sequence, h);
            const int q = h * C, kv = h / attention.sharing * C;
            const bool adds = h % attention.sharing > 0;
            panels.pack(from(d_out, q), T, C);
            multiply<Needed::FROM_ROW>({t_share, T, 1}, T, panels, t_d.v + kv, t_d.step, adds);
            panels.pack(from(t_d_out, q), T, C);
            multiply<Needed::FROM_ROW>({share, T, 1}, T, panels, t_d.v + kv, t_d.step, true);
            scores<Needed::UPPER>(t.v, kv, d_out, q, t_slope.data(), false);
            scores<Needed::UPPER>(at.v, kv, t_d_out, q, t_slope.data(), true);
            std::fill(mean.begin(), mean.end(), real(0));
            for_shares([&](std::size_t i, int t) { mean[t] += t_share[i] * kept[i] + share[i] * t_slope[i]; });
            for_shares([&](std::size_t i, int t) {
                t_slope[i] = ((t_slope[i] - mean[t]) * share[i] + kept[i] * t_share[i]) * attention.scale;
                slope[i] = kept[i] * share[i] * attention.scale;
            });
            add_products(t_slope, at, q, kv, t_d, false, adds);
            add_products(slope, t, q, kv, t_d, true, true);
        }
    }

private:
    static View from(View rows, int channel) { return {rows.data + channel, rows.row_step, 1}; }

    // Write, or add, the products of ``left`` at attended positions and ``right`` at attending ones.
    template <Needed NEEDED>
    void scores(View left, int of_left, View right, int of_right, real* to, bool adds) {
        const int T = attention.positions;
        panels.pack({right.data + of_right, 1, right.row_step}, attention.channels, T);
        multiply<NEEDED>(from(left, of_left), T, panels, to, T, adds);
    }
    void resize_scratch() {
        const std::size_t T = attention.positions;
        slope.resize(T * T), t_slope.resize(T * T), mean.resize(T);
    }
    // Call ``work`` with the place of each share that tiles reach, and its attending position.
    template <typename Work>
    void for_shares(Work work) {
        const int T = attention.positions;
        for (int s = 0; s < T; ++s) {
            const std::size_t row = static_cast<std::size_t>(s) * T;
#pragma GCC ivdep
            for (int t = s - s % NUM_ROWS; t < T; ++t) work(row + t, t);
        }
    }
    // Write or add the gradients of queries and keys, by those of the scores.
    void add_products(
        const Buffer& of_scores, const Heads& at, int q, int kv, const HeadGradients& d, bool adds_q, bool adds_k) {
        const int T = attention.positions, C = attention.channels;
        panels.pack(from(at.k, kv), T, C);
        multiply<Needed::UP_TO_ROW>({of_scores.data(), 1, T}, T, panels, d.q + q, d.step, adds_q);
        panels.pack(from(at.q, q), T, C);
        multiply<Needed::FROM_ROW>({of_scores.data(), T, 1}, T, panels, d.k + kv, d.step, adds_k);
    }
};

// A block at the point, and along the vector.
struct Layer {
    CurvedNorm norms[2], q_norm, k_norm;  // norms of the attention and of the MLP
    Linear qkv, attention_out, mlp_gate, mlp_in, mlp_out;
    CurvedAttention attention;
    Both in[2], d_out[2];  // of the two sublayers
    Both projected, normed_q, normed_k, mixed, d_projected, d_mixed;
    Both gate, value, active, d_active, d_gate, d_value;  // value: what enters GELU, or is gated
    Buffer slope, bend;  // of the activation; without a gate, bend is multiplied by the gradient there
};

// The second derivatives of GELU and of SiLU at every number.
inline void gelu_bends(const real* x, real* bend, std::size_t count) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i)
        bend[i] = real(0.39894228040143267794) * exponential(real(-0.5) * x[i] * x[i]) * (2 - x[i] * x[i]);
}
inline void silu_bends(const real* x, real* bend, std::size_t count) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) {
        const real share = 1 / (1 + exponential(-x[i]));
        bend[i] = share * (1 - share) * (2 + x[i] * (1 - 2 * share));
    }
}

}  // namespace sweep
