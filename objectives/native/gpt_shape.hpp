// What the kernels of the transformer share: its sizes, the knobs of a step, and the loss of a byte.
#pragma once

#include "elementwise.hpp"

namespace sweep {

constexpr int NUM_BYTES = 256;

enum NormKind { NONE, LAYER, RMS };
enum Place { PRE, POST, OUTPUT };
enum Part { ATTENTION_NORM, QKV, Q_NORM, K_NORM, ATTENTION_OUT, MLP_NORM, MLP_GATE, MLP_IN, MLP_OUT, NUM_PARTS };

// The fields of both are in objectives/models/gpt_native.py, too.
struct Shape {
    std::int32_t depth, width, heads, kv_heads, mlp_width, positions, norm, place, qk_norm;
    double embedding_scale, attention_scale, head_scale;
    const double* angles;  // cosines and sines of rotations, (positions, channels of a head); null without
    std::int64_t parameters;  // of a member, with padding
    // Where weights begin in a member's parameters; -1 for one that the model lacks. The embedding may be the head.
    std::int64_t embedding, position, final_norm, head;
    const std::int64_t* parts;  // of the layers, (depth, NUM_PARTS)
};

// The knobs of one step, (K) each, but dropout_key (K, sequences); a null pointer stands for the neutral number.
struct Numbers {
    const double *z_loss, *residual_scale, *dropout;
    const std::int64_t *dropout_key, *context;
};

inline std::uint32_t hashed(std::uint32_t value) {
    for (int i = 0; i < 2; ++i) value = ((value >> 16) ^ value) * 0x45D9F3Bu;
    return (value >> 16) ^ value;
}

// The factor on a sublayer's output before it is added to the residual stream.
struct BranchFactor {
    bool drops = false;
    real scale = 1;
    std::uint64_t least = 0;
    const std::int64_t* keys = nullptr;  // of each sequence
    int numbers = 0;                     // of one sequence

    static BranchFactor of(const Numbers& numbers, int k, int sequences, int numbers_of_sequence) {
        BranchFactor factor;
        factor.numbers = numbers_of_sequence;
        double scale = numbers.residual_scale ? numbers.residual_scale[k] : 1;
        if (numbers.dropout && numbers.dropout[k] > 0) {
            scale /= 1 - numbers.dropout[k];
            factor.drops = true;
            factor.least = static_cast<std::uint64_t>(std::nearbyint(numbers.dropout[k] * 4294967296.0));
            factor.keys = numbers.dropout_key + static_cast<std::size_t>(k) * sequences;
        }
        factor.scale = static_cast<real>(scale);
        return factor;
    }

    void apply(real* x, int branch, int first_sequence, int sequences) const {
        if (scale == 1 && !drops) return;
        for (int s = 0; s < sequences; ++s, x += numbers) {
            if (!drops) {
                for (int i = 0; i < numbers; ++i) x[i] *= scale;
                continue;
            }
            const std::uint32_t key = static_cast<std::uint32_t>(keys[first_sequence + s]);
            const std::uint32_t before = static_cast<std::uint32_t>(branch) * numbers;
            for (int i = 0; i < numbers; ++i) {
                const std::uint32_t bits = (hashed(before + i + 1) >> 1 | 1u) * key;
                x[i] = x[i] * (bits >= least ? scale : real(0));
            }
        }
    }
};

struct Partition {
    real total, log_z;
};
// Replace the logits of a row by their exponentials, divided by the largest one, and return their sum and log Z.
inline Partition partition(real* logits) {
    vector_t largest = load(logits);
    for (int i = LANES; i < NUM_BYTES; i += LANES) {
        const vector_t next = load(logits + i);
        largest = next > largest ? next : largest;
    }
    real highest = largest[0];
    for (int lane = 1; lane < LANES; ++lane) highest = largest[lane] > highest ? largest[lane] : highest;
    vector_t totals{};
    for (int i = 0; i < NUM_BYTES; i += LANES) {
        const vector_t share = exponential_below(load(logits + i) - highest);
        store(logits + i, share);
        totals += share;
    }
    const real total = sum_of_lanes<LANES>(totals);
    return {total, std::log(total) + highest};
}

}  // namespace sweep
