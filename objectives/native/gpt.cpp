// Losses and gradients of the stacked transformer on a CPU, member by member: all that a member needs stays in the
// processor's cache. The same mathematics as objectives/models/gpt_gradient.py.

#include "crew.hpp"
#include "parts.hpp"
#include "subnormal.hpp"

namespace sweep {
namespace {

constexpr int ROWS_OF_HEAD = 64;     // whose logits are computed at a time
constexpr int ROWS_OF_CHUNK = 128;   // about as many rows as whole sequences pass through all layers at a time

struct Layer {
    Norm norms[2], q_norm, k_norm;  // norms of the attention and of the MLP
    Weight qkv, attention_out, mlp_gate, mlp_in, mlp_out;
    Attention attention;
    Buffer in[2];  // of the two sublayers
    Buffer projected, normed_q, normed_k, mixed, active, slope, gate, value;
};

// One member at a time, for a chunk of its sequences; buffers are reused.
class Model {
public:
    explicit Model(const Shape& shape)
        : shape_(shape), layers_(shape.depth), channels_(shape.width / shape.heads),
          kv_width_(shape.kv_heads * channels_), qkv_width_(shape.width + 2 * kv_width_) {}

    // Take a member whose step has the knobs number ``k``; gradient is null for passes forward.
    void take(const real* params, real* gradient, const Numbers& numbers, int k, int sequences) {
        const int D = shape_.width;
        params_ = params, gradient_ = gradient;
        factor_ = BranchFactor::of(numbers, k, sequences, shape_.positions * D);
        z_loss_ = numbers.z_loss ? static_cast<real>(numbers.z_loss[k]) : 0;
        context_ = numbers.context ? static_cast<int>(std::min<std::int64_t>(numbers.context[k], shape_.positions))
                                   : shape_.positions;
        if (gradient) std::memset(gradient, 0, shape_.parameters * sizeof(real));
        for (int l = 0; l < shape_.depth; ++l) {
            Layer& layer = layers_[l];
            const std::int64_t* at = shape_.parts + l * NUM_PARTS;
            const auto weight = [&](Weight& taken, Part part, int inputs, int outputs) {
                taken.take(params + at[part], gradient ? gradient + at[part] : nullptr, inputs, outputs);
            };
            const auto norm = [&](Norm& taken, Part part) { take_norm(taken, at[part]); };
            weight(layer.qkv, QKV, D, qkv_width_);
            weight(layer.attention_out, ATTENTION_OUT, D, D);
            if (at[MLP_GATE] >= 0) weight(layer.mlp_gate, MLP_GATE, D, shape_.mlp_width);
            weight(layer.mlp_in, MLP_IN, D, shape_.mlp_width);
            weight(layer.mlp_out, MLP_OUT, shape_.mlp_width, D);
            norm(layer.norms[0], ATTENTION_NORM);
            norm(layer.norms[1], MLP_NORM);
            norm(layer.q_norm, Q_NORM);
            norm(layer.k_norm, K_NORM);
            layer.attention.positions = shape_.positions, layer.attention.heads = shape_.heads;
            layer.attention.channels = channels_, layer.attention.context = context_;
            layer.attention.sharing = shape_.heads / shape_.kv_heads;
            layer.attention.scale = static_cast<real>(shape_.attention_scale);
        }
        const bool is_tied = shape_.head < 0;
        const std::int64_t head = is_tied ? shape_.embedding : shape_.head;
        head_.take(params + head, gradient ? gradient + head : nullptr, D, NUM_BYTES, is_tied);
        take_norm(final_, shape_.final_norm);
    }

    // Memory for the gradient of a member that needs it for one step only.
    real* own_gradient() {
        gradient_of_step_.resize(shape_.parameters);
        return gradient_of_step_.data();
    }

    // Return the mean loss on ``tokens``, positions + 1 bytes a sequence, and write the gradient.
    real loss_and_gradient(const std::int64_t* tokens, int sequences) {
        const WithoutSubnormals here;
        TIMED(WHOLE);
        const int T = shape_.positions, D = shape_.width;
        double sum = 0;
        for_chunks(tokens, sequences, [&](const std::int64_t* bytes) {
            d_.resize(x_.size());
            sum += head(bytes, forward(bytes), real(1) / (static_cast<real>(sequences) * T));
            scale(d_, shape_.head_scale);
            if (shape_.final_norm >= 0) final_.backward(d_.data(), D, rows_, D, d_.data(), D);
            for (int l = shape_.depth - 1; l >= 0; --l) backward(layers_[l], l);
            embed_back(bytes);
        });
        return static_cast<real>(sum / (static_cast<double>(sequences) * T));
    }

    // What a pass forward shows: mean loss without z-loss, largest scaled |q.k|, and mean |log Z|.
    struct Readings {
        real loss, attention_logit, log_z;
    };
    Readings readings(const std::int64_t* tokens, int sequences) {
        const WithoutSubnormals here;
        const double count = static_cast<double>(sequences) * shape_.positions;
        double loss = 0, log_z = 0;
        real largest = 0;
        largest_ = &largest;
        for_chunks(tokens, sequences, [&](const std::int64_t* bytes) {
            for_rows_of_head(forward(bytes), [&](int first, int rows, const real*) {
                for (int r = 0; r < rows; ++r) {
                    real* logits = logits_.data() + r * NUM_BYTES;
                    const real chosen = logits[target_of(bytes, first + r)], of_row = partition(logits).log_z;
                    loss += of_row - chosen, log_z += std::fabs(of_row);
                }
            });
        });
        largest_ = nullptr;
        return {static_cast<real>(loss / count), largest, static_cast<real>(log_z / count)};
    }

private:
    void take_norm(Norm& norm, std::int64_t start) {
        if (start < 0) return;
        norm.has_mean = shape_.norm == LAYER, norm.gain = params_ + start;
        norm.gradient = gradient_ ? gradient_ + start : nullptr;
    }

    // Call ``work`` with the bytes of each chunk of sequences.
    template <typename Work>
    void for_chunks(const std::int64_t* tokens, int sequences, Work work) {
        const int T = shape_.positions, chunk = std::max(1, ROWS_OF_CHUNK / T);
        for (first_ = 0; first_ < sequences; first_ += chunk) {
            sequences_ = std::min(chunk, sequences - first_), rows_ = sequences_ * T;
            x_.resize(static_cast<std::size_t>(rows_) * shape_.width);
            work(tokens + static_cast<std::size_t>(first_) * (T + 1));
        }
    }

    // Return what enters the head.
    const real* forward(const std::int64_t* bytes) {
        const int D = shape_.width;
        embed(bytes);
        for (int l = 0; l < shape_.depth; ++l) forward(layers_[l], l);
        if (shape_.final_norm < 0 && shape_.head_scale == 1) return x_.data();
        normed_.resize(x_.size());
        if (shape_.final_norm >= 0)
            final_.forward(x_.data(), D, rows_, D, normed_.data(), D);
        else
            std::copy(x_.begin(), x_.end(), normed_.begin());
        scale(normed_, shape_.head_scale);
        return normed_.data();
    }
    static void scale(Buffer& values, double factor) {
        if (factor == 1) return;
        for (real& value : values) value *= static_cast<real>(factor);
    }

    // Call ``work`` with the place of each row, and those of its byte and its learned position, or -1, in a member.
    template <typename Work>
    void for_embeddings(const std::int64_t* bytes, Work work) {
        const std::int64_t T = shape_.positions, D = shape_.width;
        for (int r = 0; r < rows_; ++r) {
            const std::int64_t position = shape_.position < 0 ? -1 : shape_.position + r % T % context_ * D;
            work(static_cast<std::size_t>(r) * D, shape_.embedding + bytes[r + r / T] * D, position);
        }
    }
    void embed(const std::int64_t* bytes) {
        const int D = shape_.width;
        const real factor = static_cast<real>(shape_.embedding_scale);
        for_embeddings(bytes, [&](std::size_t row, std::int64_t byte, std::int64_t position) {
            real* to = x_.data() + row;
            for (int c = 0; c < D; ++c) to[c] = params_[byte + c] * factor;
            for (int c = 0; c < D && position >= 0; ++c) to[c] += params_[position + c];
        });
    }
    void embed_back(const std::int64_t* bytes) {
        const int D = shape_.width;
        const real factor = static_cast<real>(shape_.embedding_scale);
        for_embeddings(bytes, [&](std::size_t row, std::int64_t byte, std::int64_t position) {
            const real* from = d_.data() + row;
            for (int c = 0; c < D; ++c) gradient_[byte + c] += from[c] * factor;
            for (int c = 0; c < D && position >= 0; ++c) gradient_[position + c] += from[c];
        });
    }

    void forward(Layer& layer, int number) {
        const int D = shape_.width;
        for (int which = 0; which < 2; ++which) {
            Buffer& in = layer.in[which];
            in.resize(x_.size()), out_.resize(x_.size());
            if (shape_.place == PRE && shape_.norm)
                layer.norms[which].forward(x_.data(), D, rows_, D, in.data(), D);
            else
                std::copy(x_.begin(), x_.end(), in.begin());
            which ? mlp(layer) : attend(layer);
            if (shape_.place == OUTPUT && shape_.norm)
                layer.norms[which].forward(out_.data(), D, rows_, D, out_.data(), D);
            factor_.apply(out_.data(), 2 * number + which, first_, sequences_);
            for (std::size_t i = 0; i < x_.size(); ++i) x_[i] += out_[i];
            if (shape_.place == POST && shape_.norm) layer.norms[which].forward(x_.data(), D, rows_, D, x_.data(), D);
        }
    }

    void backward(Layer& layer, int number) {
        const int D = shape_.width;
        for (int which = 1; which >= 0; --which) {
            d_out_.resize(x_.size());
            if (shape_.place == POST && shape_.norm) layer.norms[which].backward(d_.data(), D, rows_, D, d_.data(), D);
            std::copy(d_.begin(), d_.end(), d_out_.begin());
            factor_.apply(d_out_.data(), 2 * number + which, first_, sequences_);
            if (shape_.place == OUTPUT && shape_.norm)
                layer.norms[which].backward(d_out_.data(), D, rows_, D, d_out_.data(), D);
            which ? mlp_back(layer) : attend_back(layer);
            if (shape_.place == PRE && shape_.norm)
                layer.norms[which].backward(d_in_.data(), D, rows_, D, d_in_.data(), D);
            for (std::size_t i = 0; i < d_.size(); ++i) d_[i] += d_in_[i];
        }
    }

    bool is_gated(const Layer& layer) const { return layer.mlp_gate.outputs > 0; }
    void mlp(Layer& layer) {
        const std::size_t size = static_cast<std::size_t>(rows_) * shape_.mlp_width;
        layer.active.resize(size), layer.slope.resize(size);
        if (is_gated(layer)) {
            layer.gate.resize(size), layer.value.resize(size);
            layer.mlp_gate.product(layer.in[1].data(), rows_, layer.gate.data());
            layer.mlp_in.product(layer.in[1].data(), rows_, layer.value.data());
            swiglu(layer.gate.data(), layer.slope.data(), layer.value.data(), layer.active.data(), size);
        } else {
            layer.mlp_in.product(layer.in[1].data(), rows_, layer.active.data());
            gelu(layer.active.data(), layer.slope.data(), size);
        }
        layer.mlp_out.product(layer.active.data(), rows_, out_.data());
    }
    void mlp_back(Layer& layer) {
        const std::size_t size = layer.active.size();
        d_wide_.resize(size), d_in_.resize(x_.size());
        layer.mlp_out.back(layer.active.data(), d_out_.data(), rows_, d_wide_.data(), panels_);
        if (is_gated(layer)) {
            d_gate_.resize(size), d_mixed_.resize(x_.size());
            for (std::size_t i = 0; i < size; ++i) {
                d_gate_[i] = d_wide_[i] * layer.value[i] * layer.slope[i];
                d_wide_[i] *= layer.gate[i];
            }
            layer.mlp_gate.back(layer.in[1].data(), d_gate_.data(), rows_, d_mixed_.data(), panels_);
            layer.mlp_in.back(layer.in[1].data(), d_wide_.data(), rows_, d_in_.data(), panels_);
            for (std::size_t i = 0; i < d_in_.size(); ++i) d_in_[i] += d_mixed_[i];
            return;
        }
        for (std::size_t i = 0; i < size; ++i) d_wide_[i] *= layer.slope[i];
        layer.mlp_in.back(layer.in[1].data(), d_wide_.data(), rows_, d_in_.data(), panels_);
    }

    struct Heads {
        View q, k, v;
    };
    Heads heads(const Layer& layer, int sequence) const {
        const std::ptrdiff_t D = shape_.width, G = kv_width_, W = qkv_width_, first = sequence * shape_.positions;
        const real* projected = layer.projected.data() + first * W;
        const View v{projected + D + G, W, 1};
        if (!shape_.qk_norm) return {{projected, W, 1}, {projected + D, W, 1}, v};
        return {{layer.normed_q.data() + first * D, D, 1}, {layer.normed_k.data() + first * G, G, 1}, v};
    }

    void attend(Layer& layer) {
        const int D = shape_.width, T = shape_.positions, W = qkv_width_;
        layer.projected.resize(static_cast<std::size_t>(rows_) * W), layer.mixed.resize(x_.size());
        layer.qkv.product(layer.in[0].data(), rows_, layer.projected.data());
        real *q = layer.projected.data(), *k = q + D;
        if (shape_.qk_norm) {
            // Every head of a row is a row of the norm.
            q = for_heads(layer.q_norm, q, D, layer.normed_q);
            k = for_heads(layer.k_norm, k, kv_width_, layer.normed_k);
            turn_heads(q, D, k, kv_width_, 1);
        } else {
            turn_heads(q, W, k, W, 1);
        }
        layer.attention.resize(sequences_);
        for (int s = 0; s < sequences_; ++s) {
            const Heads at = heads(layer, s);
            real* mixed = layer.mixed.data() + static_cast<std::size_t>(s) * T * D;
            layer.attention.forward(s, at.q, at.k, at.v, mixed, D, largest_);
        }
        layer.attention_out.product(layer.mixed.data(), rows_, out_.data());
    }
    // Turn queries and keys, whose rows lie apart by their steps, by their positions.
    void turn_heads(real* q, std::ptrdiff_t q_step, real* k, std::ptrdiff_t k_step, real direction) {
        if (!shape_.angles) return;
        TIMED(ATTENTION);
        turn(q, q_step, rows_, shape_.positions, context_, shape_.heads, channels_, shape_.angles, direction);
        turn(k, k_step, rows_, shape_.positions, context_, shape_.kv_heads, channels_, shape_.angles, direction);
    }
    real* for_heads(Norm& norm, const real* in, std::ptrdiff_t width, Buffer& out) {
        // Rows are gathered, so that one norm keeps all heads: (rows, heads, channels).
        const std::ptrdiff_t W = qkv_width_;
        out.resize(static_cast<std::size_t>(rows_) * width);
        real* to = out.data();
        for (int r = 0; r < rows_; ++r) std::copy_n(in + r * W, width, to + r * width);
        norm.forward(to, channels_, rows_ * static_cast<int>(width) / channels_, channels_, to, channels_);
        return to;
    }
    void heads_back(Norm& norm, real* d_projected, std::ptrdiff_t width) {
        const std::ptrdiff_t W = qkv_width_;
        gathered_.resize(static_cast<std::size_t>(rows_) * width);
        real* d = gathered_.data();
        for (int r = 0; r < rows_; ++r) std::copy_n(d_projected + r * W, width, d + r * width);
        norm.backward(d, channels_, rows_ * static_cast<int>(width) / channels_, channels_, d, channels_);
        for (int r = 0; r < rows_; ++r) std::copy_n(d + r * width, width, d_projected + r * W);
    }
    void attend_back(Layer& layer) {
        const std::ptrdiff_t D = shape_.width, T = shape_.positions, W = qkv_width_;
        d_wide_.resize(static_cast<std::size_t>(rows_) * W), d_in_.resize(x_.size()), d_mixed_.resize(x_.size());
        layer.attention_out.back(layer.mixed.data(), d_out_.data(), rows_, d_mixed_.data(), panels_);
        for (int s = 0; s < sequences_; ++s) {
            const Heads at = heads(layer, s);
            real* d = d_wide_.data() + s * T * W;
            layer.attention.backward(
                s, at.q, at.k, at.v, {d_mixed_.data() + s * T * D, D, 1}, d, W, d + D, W, d + D + kv_width_, W);
        }
        turn_heads(d_wide_.data(), W, d_wide_.data() + D, W, -1);
        if (shape_.qk_norm) {
            heads_back(layer.q_norm, d_wide_.data(), D);
            heads_back(layer.k_norm, d_wide_.data() + D, kv_width_);
        }
        layer.qkv.back(layer.in[0].data(), d_wide_.data(), rows_, d_in_.data(), panels_);
    }

    // Compute the logits of some rows of ``out`` at a time, and call ``work`` with their number and place in ``out``.
    template <typename Work>
    void for_rows_of_head(const real* out, Work work) {
        logits_.resize(static_cast<std::size_t>(ROWS_OF_HEAD) * NUM_BYTES);
        for (int first = 0; first < rows_; first += ROWS_OF_HEAD) {
            const int rows = std::min(ROWS_OF_HEAD, rows_ - first);
            const real* at = out + static_cast<std::size_t>(first) * shape_.width;
            head_.product(at, rows, logits_.data());
            work(first, rows, at);
        }
    }
    int target_of(const std::int64_t* bytes, int row) const {
        return static_cast<int>(bytes[row + row / shape_.positions + 1]);
    }

    // Write the gradient at the rows of ``out`` to d_, and return the sum of their losses.
    double head(const std::int64_t* bytes, const real* out, real per_token) {
        double sum = 0;
        for_rows_of_head(out, [&](int first, int rows, const real* at) {
            sum += cross_entropy(bytes, first, rows, per_token);
            real* d = d_.data() + static_cast<std::size_t>(first) * shape_.width;
            head_.back(at, logits_.data(), rows, d, panels_);
        });
        return sum;
    }
    // Replace the logits of the rows by the gradient there, and return the sum of their losses.
    double cross_entropy(const std::int64_t* bytes, int first, int rows, real per_token) {
        TIMED(CROSS_ENTROPY);
        double sum = 0;
        for (int r = 0; r < rows; ++r)
            sum += cross_entropy(logits_.data() + r * NUM_BYTES, target_of(bytes, first + r), per_token, z_loss_);
        return sum;
    }
    // Replace the logits of a row by the gradient, and return its loss.
    static real cross_entropy(real* logits, int target, real per_token, real z_loss) {
        const real chosen = logits[target];
        const Partition of_row = partition(logits);
        // The softmax share of a logit is also the derivative of log Z.
        const real factor = per_token / of_row.total * (1 + 2 * z_loss * of_row.log_z);
        for (int i = 0; i < NUM_BYTES; ++i) logits[i] *= factor;
        logits[target] -= per_token;
        return of_row.log_z - chosen + (z_loss > 0 ? z_loss * of_row.log_z * of_row.log_z : 0);
    }

    Shape shape_;
    std::vector<Layer> layers_;
    int channels_, kv_width_, qkv_width_;  // of a head, of all keys, of queries, keys and values
    Weight head_;
    Norm final_;
    int context_ = 0;
    real z_loss_ = 0;
    real* largest_ = nullptr;  // attention logit, while it is read
    int first_ = 0, sequences_ = 0, rows_ = 0;  // of the chunk
    const real* params_ = nullptr;
    real* gradient_ = nullptr;
    BranchFactor factor_;
    Buffer x_, d_, out_, d_out_, d_in_, d_wide_, d_gate_, d_mixed_, normed_, logits_, gathered_, gradient_of_step_;
    Panels panels_;
};

using Gpts = Crew<Model>;

}  // namespace
}  // namespace sweep

// Null without memory.
extern "C" void* gpt_create(const sweep::Shape* shape) try {
    return new sweep::Gpts(*shape);
} catch (const std::bad_alloc&) {
    return nullptr;
}

extern "C" void gpt_destroy(void* crew) { delete static_cast<sweep::Gpts*>(crew); }

// What follows from a member's loss and gradient at step t.
typedef void Optimizer(const void* state, std::int64_t t, std::int64_t k, sweep::real loss, sweep::real* gradient);

// params and gradient are (K, parameters), tokens (K, sequences, positions + 1), losses (K). Returns 0, or 1 without
// memory.
extern "C" int gpt_losses_and_gradient(
    void* handle, const sweep::Numbers* numbers, int members, int sequences, int threads, const sweep::real* params,
    const std::int64_t* tokens, sweep::real* losses, sweep::real* gradient) {
    sweep::Gpts& crew = *static_cast<sweep::Gpts*>(handle);
    const std::size_t size = crew.shape.parameters;
    const std::size_t bytes = static_cast<std::size_t>(sequences) * (crew.shape.positions + 1);
    return crew.for_members(members, threads, [&](sweep::Model& model, int k) {
        model.take(params + k * size, gradient + k * size, *numbers, k, sequences);
        losses[k] = model.loss_and_gradient(tokens + k * bytes, sequences);
    });
}

// Train every member for some steps before the next one, while it is in the cache: tokens are (steps, K, sequences,
// positions + 1), numbers (steps). The optimizer changes params. Returns 0, or 1 without memory.
extern "C" int gpt_train(
    void* handle, const sweep::Numbers* numbers, int members, int sequences, int threads, int steps,
    const sweep::real* params, const std::int64_t* tokens, Optimizer* optimizer, const void* state) {
    sweep::Gpts& crew = *static_cast<sweep::Gpts*>(handle);
    const std::size_t size = crew.shape.parameters;
    const std::size_t bytes = static_cast<std::size_t>(sequences) * (crew.shape.positions + 1);
    return crew.for_members(members, threads, [&](sweep::Model& model, int k) {
        for (int t = 0; t < steps; ++t) {
            sweep::real* gradient = model.own_gradient();
            model.take(params + k * size, gradient, numbers[t], k, sequences);
            const sweep::real loss =
                model.loss_and_gradient(tokens + (static_cast<std::size_t>(t) * members + k) * bytes, sequences);
            optimizer(state, t, k, loss, gradient);
        }
    });
}

// Passes forward: loss, attention_logit and log_z are (K) each, the rest as above.
extern "C" int gpt_readings(
    void* handle, const sweep::Numbers* numbers, int members, int sequences, int threads, const sweep::real* params,
    const std::int64_t* tokens, sweep::real* loss, sweep::real* attention_logit, sweep::real* log_z) {
    sweep::Gpts& crew = *static_cast<sweep::Gpts*>(handle);
    const std::size_t bytes = static_cast<std::size_t>(sequences) * (crew.shape.positions + 1);
    return crew.for_members(members, threads, [&](sweep::Model& model, int k) {
        model.take(params + k * crew.shape.parameters, nullptr, *numbers, k, sequences);
        const sweep::Model::Readings found = model.readings(tokens + k * bytes, sequences);
        loss[k] = found.loss, attention_logit[k] = found.attention_logit, log_z[k] = found.log_z;
    });
}
