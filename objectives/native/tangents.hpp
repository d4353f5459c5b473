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
    Buffer spread, t_shares;  // the gradient of each share less its mean, and the shares' derivatives
    Buffer d_scores, t_d_scores;

    void resize(int sequences) {
        attention.resize(sequences);
        spread.resize(attention.shares.size()), t_shares.resize(attention.shares.size());
        d_scores.resize(attention.size()), t_d_scores.resize(attention.size());
    }
    void forward_along(int sequence, const Heads& at, const Heads& t, real* t_out, std::ptrdiff_t out_step) {
        TIMED(ATTENTION);
        for_heads(sequence, [&](const Head& head) {
            const real* share = head.share;
            real* t_share = head.t_share;
            attention.scores(head.shared(t.k), head.own(at.q), t_share, false);
            attention.scores(head.shared(at.k), head.own(t.q), t_share, true);
            for_columns([&](auto for_attended) {
                vector_t mean{};
                for_attended([&](std::size_t i) { mean += load(share + i) * load(t_share + i); });
                for_attended([&](std::size_t i) {
                    store(t_share + i, load(share + i) * (load(t_share + i) - mean) * attention.scale);
                });
            });
            attention.add_shared(t_share, head.shared(at.v), t_out + head.first, out_step, false);
            attention.add_shared(share, head.shared(t.v), t_out + head.first, out_step, true);
        });
    }

    void back(int sequence, const Heads& at, View d_out, const HeadGradients& d) {
        TIMED(ATTENTION);
        for_heads(sequence, [&](const Head& head) {
            const real* share = head.share;
            real* kept = head.spread;
            attention.add_attending(share, head.own(d_out), d.v + head.first_shared, d.step, head.adds);
            attention.scores(head.shared(at.v), head.own(d_out), kept, false);
            for_columns([&](auto for_attended) {
                vector_t mean{};
                for_attended([&](std::size_t i) { mean += load(share + i) * load(kept + i); });
                for_attended([&](std::size_t i) {
                    store(kept + i, load(kept + i) - mean);
                    store(&d_scores[i], load(kept + i) * load(share + i) * attention.scale);
                });
            });
            add_products(head, d_scores, at, d, false, head.adds);
        });
    }

    void back_along(
        int sequence, const Heads& at, const Heads& t, View d_out, View t_d_out, const HeadGradients& t_d) {
        TIMED(ATTENTION);
        for_heads(sequence, [&](const Head& head) {
            const real *share = head.share, *t_share = head.t_share, *kept = head.spread;
            real *slope = d_scores.data(), *t_slope = t_d_scores.data();
            attention.add_attending(t_share, head.own(d_out), t_d.v + head.first_shared, t_d.step, head.adds);
            attention.add_attending(share, head.own(t_d_out), t_d.v + head.first_shared, t_d.step, true);
            attention.scores(head.shared(t.v), head.own(d_out), t_slope, false);
            attention.scores(head.shared(at.v), head.own(t_d_out), t_slope, true);
            for_columns([&](auto for_attended) {
                vector_t mean{};
                for_attended([&](std::size_t i) {
                    mean += load(t_share + i) * load(kept + i) + load(share + i) * load(t_slope + i);
                });
                for_attended([&](std::size_t i) {
                    const vector_t turned = load(kept + i) * load(t_share + i);
                    store(t_slope + i, ((load(t_slope + i) - mean) * load(share + i) + turned) * attention.scale);
                    store(slope + i, load(kept + i) * load(share + i) * attention.scale);
                });
            });
            add_products(head, t_d_scores, at, t_d, false, head.adds);
            add_products(head, d_scores, t, t_d, true, true);
        });
    }

private:
    // What is kept of a head, and its first channel among all queries, and among the keys and values that it shares.
    struct Head {
        const real* share;
        real *t_share, *spread;
        int first, first_shared;
        bool adds;  // to what another head of the same keys and values has written

        View own(View rows) const { return Attention::at(rows, first); }
        View shared(View rows) const { return Attention::at(rows, first_shared); }
    };
    template <typename Work>
    void for_heads(int sequence, Work work) {
        const int C = attention.channels, sharing = attention.sharing;
        for (int h = 0; h < attention.heads; ++h)
            work(Head{
                attention.of(sequence, h), attention.of(t_shares, sequence, h), attention.of(spread, sequence, h),
                h * C, h / sharing * C, h % sharing > 0});
    }
    // Call ``work`` for each vector of attending positions, with what goes through its places in the scores.
    template <typename Work>
    void for_columns(Work work) const {
        attention.for_attending([&](int first) {
            work([&](auto of_place) { attention.for_attended(first, of_place); });
        });
    }
    // Write or add the gradients of queries and keys, by those of the scores.
    void add_products(
        const Head& head, const Buffer& of_scores, const Heads& at, const HeadGradients& d, bool adds_q, bool adds_k) {
        attention.add_shared(of_scores.data(), head.shared(at.k), d.q + head.first, d.step, adds_q);
        attention.add_attending(of_scores.data(), head.own(at.q), d.k + head.first_shared, d.step, adds_k);
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
