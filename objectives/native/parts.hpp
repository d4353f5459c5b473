// The parts of a transformer block for the rows of some sequences of one member, each with its backward pass.
#pragma once

#include <limits>

#include "clock.hpp"
#include "elementwise.hpp"

namespace sweep {

// A weight of one member, packed once a step for both directions, and where its gradient is added. It is stored input
// by output, or the other way round if it is transposed.
struct Weight {
    Panels forward, backward;
    real* gradient = nullptr;
    int inputs = 0, outputs = 0;
    bool is_transposed = false;

    void take(const real* data, real* new_gradient, int new_inputs, int new_outputs, bool transposed = false) {
        TIMED(PRODUCTS);
        gradient = new_gradient, inputs = new_inputs, outputs = new_outputs, is_transposed = transposed;
        const View by_input = transposed ? View{data, 1, inputs} : View{data, outputs, 1};
        forward.pack(by_input, inputs, outputs);
        if (gradient) backward.pack({data, by_input.column_step, by_input.row_step}, outputs, inputs);
    }
    void product(const real* in, int rows, real* out) const {
        TIMED(PRODUCTS);
        multiply({in, inputs, 1}, rows, forward, out, outputs, false);
    }
    // d_in may be null.
    void back(const real* in, const real* d_out, int rows, real* d_in, Panels& scratch) const {
        TIMED(PRODUCTS);
        add_gradient(in, d_out, rows, scratch);
        if (d_in) multiply({d_out, outputs, 1}, rows, backward, d_in, inputs, false);
    }
    void add_gradient(const real* in, const real* d_out, int rows, Panels& scratch) const {
        if (is_transposed) {
            multiply(View{d_out, 1, outputs}, outputs, scratch.of({in, inputs, 1}, rows, inputs), gradient, inputs, true);
        } else {
            multiply(View{in, 1, inputs}, inputs, scratch.of({d_out, outputs, 1}, rows, outputs), gradient, outputs, true);
        }
    }
};

// (x - mean) / sqrt(variance + eps), or x / sqrt(mean(x^2) + eps), times a gain; over rows that may lie apart.
struct Norm {
    bool has_mean = true;
    const real* gain = nullptr;
    real* gradient = nullptr;
    Buffer normed, inverse;

    void forward(const real* in, std::ptrdiff_t in_step, int rows, int channels, real* out, std::ptrdiff_t out_step) {
        TIMED(NORMS);
        normed.resize(static_cast<std::size_t>(rows) * channels), inverse.resize(rows);
        real* kept = normed.data();
        // Some rows at a time, so that none waits for the root of the one before.
        for (int first = 0; first < rows; first += ROWS_AT_A_TIME) {
            const int count = std::min(ROWS_AT_A_TIME, rows - first);
            real mean[ROWS_AT_A_TIME] = {}, square[ROWS_AT_A_TIME] = {};
            for (int r = 0; r < count; ++r) {
                const real* row = in + r * in_step;
                const real center = has_mean ? sum_of(channels, [&](int c) { return row[c]; }) / channels : 0;
                mean[r] = center;
                square[r] = sum_of(channels, [&](int c) { return (row[c] - center) * (row[c] - center); });
            }
            for (int r = 0; r < ROWS_AT_A_TIME; ++r) square[r] = 1 / std::sqrt(square[r] / channels + real(1e-5));
            for (int r = 0; r < count; ++r, in += in_step, out += out_step, kept += channels) {
                const real center = mean[r], factor = square[r];
                inverse[first + r] = factor;
#pragma GCC ivdep
                for (int c = 0; c < channels; ++c) {
                    kept[c] = (in[c] - center) * factor;
                    out[c] = kept[c] * gain[c];
                }
            }
        }
    }
    // d_in may be d_out.
    void backward(
        const real* d_out, std::ptrdiff_t out_step, int rows, int channels, real* d_in, std::ptrdiff_t in_step) {
        TIMED(NORMS);
        add_gradient(d_out, out_step, rows, channels);
        const real* kept = normed.data();
        for (int r = 0; r < rows; ++r, d_out += out_step, d_in += in_step, kept += channels) {
            const real along = sum_of(channels, [&](int c) { return d_out[c] * gain[c] * kept[c]; }) / channels;
            const real mean =
                has_mean ? sum_of(channels, [&](int c) { return d_out[c] * gain[c]; }) / channels : 0;
#pragma GCC ivdep
            for (int c = 0; c < channels; ++c)
                d_in[c] = (d_out[c] * gain[c] - mean - kept[c] * along) * inverse[r];
        }
    }

private:
    static constexpr int ROWS_AT_A_TIME = 16;

    void add_gradient(const real* d_out, std::ptrdiff_t out_step, int rows, int channels) {
        int c = 0;
        for (; c + LANES <= channels; c += LANES) {
            vector_t sum = load(gradient + c);
            for (int r = 0; r < rows; ++r) sum += load(d_out + r * out_step + c) * load(&normed[r * channels + c]);
            store(gradient + c, sum);
        }
        for (; c < channels; ++c)
            for (int r = 0; r < rows; ++r) gradient[c] += d_out[r * out_step + c] * normed[r * channels + c];
    }
};

// Causal attention of all heads of one sequence at a time, within blocks of ``context`` positions. Scores are kept
// transposed, (T attended, T attending), in rows of whole vectors, so that a softmax runs over rows and its vectors over
// attending positions. A row begins at the vector of its diagonal: what is before it may be anything.
struct Attention {
    int positions = 0, heads = 0, channels = 0, context = 0;
    int sharing = 1;  // queries that share a head of keys and values
    real scale = 1;   // of the products of queries and keys
    Buffer shares;  // of each sequence and head
    Buffer d_scores;
    Panels panels;

    // q and out are (T, heads * channels), k and v have the shared heads; rows lie steps apart. The largest score is
    // raised to what is seen here, unless it is null.
    void forward(int sequence, View q, View k, View v, real* out, std::ptrdiff_t out_step, real* largest) {
        TIMED(ATTENTION);
        for (int h = 0; h < heads; ++h) {
            real* share = of(sequence, h);
            const int own = h * channels, shared = h / sharing * channels;
            scores(at(k, shared), at(q, own), share, false);
            if (largest) raise(*largest, share, scale);
            for_attending([&](int first) { softmax(share + first, first); });
            add_shared(share, at(v, shared), out + own, out_step, false);
        }
    }

    void backward(
        int sequence, View q, View k, View v, View d_out, real* d_q, std::ptrdiff_t q_step, real* d_k,
        std::ptrdiff_t k_step, real* d_v, std::ptrdiff_t v_step) {
        TIMED(ATTENTION);
        d_scores.resize(size());
        for (int h = 0; h < heads; ++h) {
            const real* share = of(sequence, h);
            const int own = h * channels, shared = h / sharing * channels;
            const bool adds = h % sharing > 0;
            add_attending(share, at(d_out, own), d_v + shared, v_step, adds);
            scores(at(v, shared), at(d_out, own), d_scores.data(), false);
            // The derivative of a softmax: share * (incoming gradient - its mean, weighted by the shares).
            for_attending([&](int first) {
                vector_t mean{};
                for_attended(first, [&](std::size_t i) { mean += load(share + i) * load(&d_scores[i]); });
                for_attended(first, [&](std::size_t i) {
                    store(&d_scores[i], (load(&d_scores[i]) - mean) * load(share + i) * scale);
                });
            });
            add_shared(d_scores.data(), at(k, shared), d_q + own, q_step, false);
            add_attending(d_scores.data(), at(q, own), d_k + shared, k_step, adds);
        }
    }

    void resize(int sequences) { shares.resize(sequences * heads * size()); }
    // The shares of a sequence and head, or what else is kept in their order.
    real* of(int sequence, int head) { return of(shares, sequence, head); }
    real* of(Buffer& kept, int sequence, int head) const {
        return kept.data() + (static_cast<std::size_t>(sequence) * heads + head) * size();
    }
    std::size_t size() const { return static_cast<std::size_t>(positions) * row(); }
    static View at(View rows, int channel) { return {rows.data + channel, rows.row_step, rows.column_step}; }

    // Write, or add, the products of ``left`` at attended positions and ``right`` at attending ones.
    void scores(View left, View right, real* to, bool adds) {
        panels.pack({right.data, 1, right.row_step}, channels, positions);
        Right packed = panels;
        packed.columns = row();
        multiply<Needed::UPPER>(left, positions, packed, to, row(), adds);
    }
    // Write, or add, the sums over attended positions of their rows, weighted by what is kept for each.
    void add_shared(const real* kept, View rows, real* to, std::ptrdiff_t to_step, bool adds) {
        multiply<Needed::UP_TO_ROW>(
            {kept, 1, row()}, positions, panels.of(rows, positions, channels), to, to_step, adds);
    }
    // The same over attending positions.
    void add_attending(const real* kept, View rows, real* to, std::ptrdiff_t to_step, bool adds) {
        multiply<Needed::FROM_ROW>(
            {kept, row(), 1}, positions, panels.of(rows, positions, channels), to, to_step, adds);
    }

    // Call ``work`` with the first position of each vector of attending ones.
    template <typename Work>
    void for_attending(Work work) const {
        for (int first = 0; first < positions; first += LANES) work(first);
    }
    // Call ``work`` with the place in the scores of every vector that begins with the attending position ``first``.
    template <typename Work>
    void for_attended(int first, Work work) const {
        const int end = std::min(first + LANES, positions);
        for (int s = 0; s < end; ++s) work(static_cast<std::size_t>(s) * row() + first);
    }

private:
    std::ptrdiff_t row() const { return (positions + LANES - 1) / LANES * LANES; }
    int end_of(int s) const { return std::min(positions, (s / context + 1) * context); }

    // Replace the scores of the vector of attending positions that begins with ``first`` by their shares.
    void softmax(real* share, int first) const {
        const int end = std::min(first + LANES, positions);
        vector_t attending;
        for (int lane = 0; lane < LANES; ++lane) attending[lane] = static_cast<real>(first + lane);
        const auto is_seen = [&](int s) {
            return (attending >= static_cast<real>(s)) & (attending < static_cast<real>(end_of(s)));
        };
        const vector_t lowest = vector_t{} - std::numeric_limits<real>::infinity();
        vector_t highest = lowest, total{};
        for (int s = 0; s < end; ++s) {
            const vector_t score = load(share + s * row());
            highest = (score > highest) & is_seen(s) ? score : highest;
        }
        for (int s = 0; s < end; ++s) {
            real* here = share + s * row();
            const vector_t weight = exponential_below((load(here) - highest) * scale);
            const vector_t seen = is_seen(s) ? weight : vector_t{};
            store(here, seen);
            total += seen;
        }
        total = 1 / total;
        for (int s = 0; s < end; ++s) store(share + s * row(), load(share + s * row()) * total);
    }
    void raise(real& largest, const real* scores, real scale) const {
        for (int s = 0; s < positions; ++s)
            for (int t = s, end = end_of(s); t < end; ++t) {
                const real size = std::fabs(scores[s * row() + t]) * scale;
                largest = size > largest || size != size ? size : largest;
            }
    }
};

// Turn the pairs of channels c and c + C / 2 of each head of rows that lie ``step`` apart; ``angle`` has a cosine and a
// sine for each position and pair, and ``direction`` is 1, or -1 for the way back.
inline void turn(
    real* x, std::ptrdiff_t step, int rows, int positions, int context, int heads, int channels, const double* angle,
    real direction) {
    const int half = channels / 2;
    for (int r = 0; r < rows; ++r, x += step) {
        const double* of_row = angle + static_cast<std::size_t>(r % positions % context) * channels;
        for (int h = 0; h < heads; ++h) {
            real *first = x + h * channels, *second = first + half;
            for (int c = 0; c < half; ++c) {
                const real cosine = static_cast<real>(of_row[c]);
                const real sine = direction * static_cast<real>(of_row[half + c]);
                const real a = first[c], b = second[c];
                first[c] = a * cosine - b * sine;
                second[c] = b * cosine + a * sine;
            }
        }
    }
}

// SwiGLU: active = silu(gate) * value. The gate is replaced by silu(gate), and slope gets silu's slope there.
__attribute__((noinline)) inline void swiglu(real* gate, real* slope, const real* value, real* active, std::size_t count) {
    TIMED(ACTIVATION);
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) slope[i] = exponential(-gate[i]);
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) {
        const real at = gate[i], share = 1 / (1 + slope[i]);
        slope[i] = share * (1 + at * (1 - share));
        gate[i] = at * share;
        active[i] = gate[i] * value[i];
    }
}

// GELU and its slope at a number or a vector: x F(x) and F(x) + x f(x), with the normal distribution F and its density f.
template <typename Real>
struct Gelu {
    Real value, slope;
};
template <typename Real>
ALWAYS_INLINE Gelu<Real> gelu_of(Real x) {
    const Real bell = exponential_below(x * x * real(-0.5)), share = normal_share(x, bell);
    return {x * share, share + x * real(0.39894228040143267794) * bell};
}
__attribute__((noinline)) inline void gelu(real* x, real* slope, std::size_t count) {
    TIMED(ACTIVATION);
    std::size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const auto found = gelu_of(load(x + i));
        store(x + i, found.value), store(slope + i, found.slope);
    }
    for (; i < count; ++i) {
        const auto found = gelu_of(x[i]);
        x[i] = found.value, slope[i] = found.slope;
    }
}

}  // namespace sweep
