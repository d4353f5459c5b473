// Products of the Hessian of the stacked transformer's losses and vectors on a CPU, exact up to rounding: the derivative
// of objectives/native/gpt.cpp's passes along a vector. A model keeps both passes of one member at one point, whose
// derivatives along any number of vectors follow.

#include "crew.hpp"
#include "curvature.hpp"
#include "tangents.hpp"

namespace sweep {
namespace {

constexpr int ROWS_OF_HEAD = 64;   // whose logits are computed at a time
constexpr int ROWS_OF_CHUNK = 64;  // about as many rows as whole sequences pass through all layers at a time

// Each function does its part of a pass at the point, or of the derivative of that pass if ALONG.
class Model {
public:
    CurvatureMeter meter;

    explicit Model(const Shape& shape)
        : shape_(shape), layers_(shape.depth), channels_(shape.width / shape.heads),
          kv_width_(shape.kv_heads * channels_), qkv_width_(shape.width + 2 * kv_width_) {}

    // Do both passes, write the gradient and return the loss. ``params`` and the keys of dropout must stay.
    real take(
        const real* params, real* gradient, const Numbers& numbers, int k, const std::int64_t* tokens, int sequences) {
        const WithoutSubnormals here;
        const int T = shape_.positions, D = shape_.width;
        all_sequences_ = sequences, all_bytes_.assign(tokens, tokens + static_cast<std::size_t>(sequences) * (T + 1));
        factor_ = BranchFactor::of(numbers, k, sequences, T * D);
        loss_ = 0, z_loss_ = numbers.z_loss ? static_cast<real>(numbers.z_loss[k]) : 0;
        context_ = numbers.context ? static_cast<int>(std::min<std::int64_t>(numbers.context[k], T)) : T;
        passes<false>(params, gradient);
        return static_cast<real>(loss_ / (static_cast<double>(sequences) * T));
    }

    // Write the product of the Hessian and a vector.
    void multiply_by(const real* vector, real* product) {
        const WithoutSubnormals here;
        passes<true>(vector, product);
    }

private:
    void resize() {
        const std::size_t D = shape_.width, F = shape_.mlp_width, rows = rows_;
        for (Both* both : {&x_, &out_, &d_, &d_in_, &d_other_, &final_in_}) both->resize(rows * D);
        logits_.resize(rows * NUM_BYTES), log_z_.resize(rows);
        for (Layer& layer : layers_) {
            for (int which = 0; which < 2; ++which) layer.in[which].resize(rows * D), layer.d_out[which].resize(rows * D);
            layer.projected.resize(rows * qkv_width_), layer.d_projected.resize(rows * qkv_width_);
            layer.normed_q.resize(rows * D), layer.normed_k.resize(rows * kv_width_);
            layer.mixed.resize(rows * D), layer.d_mixed.resize(rows * D);
            for (Both* both : {&layer.value, &layer.active, &layer.d_active, &layer.d_value}) both->resize(rows * F);
            for (Both* both : {&layer.gate, &layer.d_gate}) both->resize(is_gated() ? rows * F : 0);
            layer.slope.resize(rows * F), layer.bend.resize(rows * F);
            Attention& attention = layer.attention.attention;
            attention.positions = shape_.positions, attention.heads = shape_.heads;
            attention.channels = channels_, attention.context = context_;
            attention.sharing = shape_.heads / shape_.kv_heads;
            attention.scale = static_cast<real>(shape_.attention_scale);
            layer.attention.resize(sequences_);
        }
    }
    bool is_gated() const { return shape_.parts[MLP_GATE] >= 0; }

    // Take what is kept of a chunk's passes at the point, or put it back. All chunks share the derivatives.
    void exchange(std::vector<Buffer>& kept) {
        std::size_t next = 0;
        const auto swap = [&](Buffer& buffer) {
            if (next == kept.size()) kept.emplace_back();
            std::swap(buffer, kept[next++]);
        };
        const auto swap_norm = [&](CurvedNorm& it) { swap(it.norm.normed), swap(it.norm.inverse), swap(it.d_out); };
        for (Layer& layer : layers_) {
            for (CurvedNorm* norm : {&layer.norms[0], &layer.norms[1], &layer.q_norm, &layer.k_norm}) swap_norm(*norm);
            for (Both* both :
                 {&layer.in[0], &layer.in[1], &layer.d_out[0], &layer.d_out[1], &layer.projected, &layer.normed_q,
                  &layer.normed_k, &layer.mixed, &layer.d_projected, &layer.d_mixed, &layer.active, &layer.d_value})
                swap(both->here);
            if (is_gated())
                for (Both* both : {&layer.gate, &layer.value, &layer.d_active, &layer.d_gate}) swap(both->here);
            swap(layer.slope), swap(layer.bend), swap(layer.attention.attention.shares), swap(layer.attention.spread);
        }
        swap_norm(final_), swap(final_in_.here), swap(logits_.here), swap(log_z_);
    }

    // ``from`` are the weights, or their directions, and ``to`` is the gradient, or the product.
    template <bool ALONG>
    void passes(const real* from, real* to) {
        std::memset(to, 0, shape_.parameters * sizeof(real));
        take<ALONG>(from, to);
        const int T = shape_.positions, chunk = std::max(1, ROWS_OF_CHUNK / T);
        chunks_.resize((all_sequences_ + chunk - 1) / chunk);
        for (std::size_t c = 0; c < chunks_.size(); ++c) {
            first_ = static_cast<int>(c) * chunk, sequences_ = std::min(chunk, all_sequences_ - first_);
            rows_ = sequences_ * T, bytes_ = all_bytes_.data() + static_cast<std::size_t>(first_) * (T + 1);
            exchange(chunks_[c]);
            resize();
            embed<ALONG>(from);
            for (int l = 0; l < shape_.depth; ++l) forward<ALONG>(l);
            through_head<ALONG>();
            for (int l = shape_.depth - 1; l >= 0; --l) backward<ALONG>(l);
            embed_back<ALONG>(to);
            exchange(chunks_[c]);
        }
    }

    template <bool ALONG>
    void take(const real* from, real* to) {
        const int D = shape_.width, F = shape_.mlp_width;
        const auto weight = [&](Linear& taken, std::int64_t start, int inputs, int outputs, bool is_transposed) {
            (ALONG ? taken.direction : taken.weight).take(from + start, to + start, inputs, outputs, is_transposed);
        };
        const auto norm = [&](CurvedNorm& taken, std::int64_t start) {
            if (start < 0) return;
            if (ALONG) {
                taken.t_gain = from + start, taken.product = to + start;
            } else {
                taken.norm.has_mean = shape_.norm == LAYER;
                taken.norm.gain = from + start, taken.norm.gradient = to + start;
            }
        };
        for (int l = 0; l < shape_.depth; ++l) {
            Layer& layer = layers_[l];
            const std::int64_t* at = shape_.parts + l * NUM_PARTS;
            weight(layer.qkv, at[QKV], D, qkv_width_, false);
            weight(layer.attention_out, at[ATTENTION_OUT], D, D, false);
            if (is_gated()) weight(layer.mlp_gate, at[MLP_GATE], D, F, false);
            weight(layer.mlp_in, at[MLP_IN], D, F, false);
            weight(layer.mlp_out, at[MLP_OUT], F, D, false);
            norm(layer.norms[0], at[ATTENTION_NORM]);
            norm(layer.norms[1], at[MLP_NORM]);
            norm(layer.q_norm, at[Q_NORM]);
            norm(layer.k_norm, at[K_NORM]);
        }
        const bool is_tied = shape_.head < 0;
        weight(head_, is_tied ? shape_.embedding : shape_.head, D, NUM_BYTES, is_tied);
        norm(final_, shape_.final_norm);
    }

    // Call ``work`` with the place of each row, and those of its byte and its learned position, or -1, in a member.
    template <typename Work>
    void for_embeddings(Work work) {
        const std::int64_t T = shape_.positions, D = shape_.width;
        for (int r = 0; r < rows_; ++r) {
            const std::int64_t position = shape_.position < 0 ? -1 : shape_.position + r % T % context_ * D;
            work(static_cast<std::size_t>(r) * D, shape_.embedding + bytes_[r + r / T] * D, position);
        }
    }
    template <bool ALONG>
    void embed(const real* from) {
        const real factor = static_cast<real>(shape_.embedding_scale);
        for_embeddings([&](std::size_t row, std::int64_t byte, std::int64_t position) {
            real* to = x_.at<ALONG>(row);
            for (int c = 0; c < shape_.width; ++c) to[c] = from[byte + c] * factor;
            for (int c = 0; c < shape_.width && position >= 0; ++c) to[c] += from[position + c];
        });
    }
    template <bool ALONG>
    void embed_back(real* to) {
        const real factor = static_cast<real>(shape_.embedding_scale);
        for_embeddings([&](std::size_t row, std::int64_t byte, std::int64_t position) {
            const real* d = d_.at<ALONG>(row);
            for (int c = 0; c < shape_.width; ++c) to[byte + c] += d[c] * factor;
            for (int c = 0; c < shape_.width && position >= 0; ++c) to[position + c] += d[c];
        });
    }

    template <bool ALONG>
    void forward(int number) {
        Layer& layer = layers_[number];
        for (int which = 0; which < 2; ++which) {
            layer.in[which].of<ALONG>() = x_.of<ALONG>();
            norm<ALONG>(PRE, layer.norms[which], layer.in[which]);
            which ? mlp<ALONG>(layer) : attend<ALONG>(layer);
            norm<ALONG>(OUTPUT, layer.norms[which], out_);
            factor_.apply(out_.at<ALONG>(), 2 * number + which, first_, sequences_);
            add(x_.of<ALONG>(), out_.of<ALONG>());
            norm<ALONG>(POST, layer.norms[which], x_);
        }
    }
    template <bool ALONG>
    void backward(int number) {
        Layer& layer = layers_[number];
        for (int which = 1; which >= 0; --which) {
            Both& d_out = layer.d_out[which];
            norm_back<ALONG>(POST, layer.norms[which], d_);
            d_out.of<ALONG>() = d_.of<ALONG>();
            factor_.apply(d_out.at<ALONG>(), 2 * number + which, first_, sequences_);
            norm_back<ALONG>(OUTPUT, layer.norms[which], d_out);
            which ? mlp_back<ALONG>(layer) : attend_back<ALONG>(layer);
            norm_back<ALONG>(PRE, layer.norms[which], d_in_);
            add(d_.of<ALONG>(), d_in_.of<ALONG>());
        }
    }
    static void add(Buffer& to, const Buffer& what) {
        for (std::size_t i = 0; i < to.size(); ++i) to[i] += what[i];
    }
    template <bool ALONG>
    void norm(Place place, CurvedNorm& norm, Both& x) {
        if (shape_.place == place && shape_.norm) norm_rows<ALONG>(norm, x, rows_, shape_.width);
    }
    template <bool ALONG>
    void norm_back(Place place, CurvedNorm& norm, Both& d) {
        if (shape_.place == place && shape_.norm) norm_rows_back<ALONG>(norm, d, rows_, shape_.width);
    }
    template <bool ALONG>
    void norm_rows(CurvedNorm& norm, Both& x, int rows, int channels) {
        if constexpr (ALONG)
            norm.forward_along(x.at<true>(), rows, channels, x.at<true>());
        else
            norm.forward(x.at<false>(), rows, channels, x.at<false>());
    }
    template <bool ALONG>
    void norm_rows_back(CurvedNorm& norm, Both& d, int rows, int channels) {
        if constexpr (ALONG)
            norm.back_along(d.at<true>(), rows, channels);
        else
            norm.back(d.at<false>(), rows, channels);
    }
    template <bool ALONG>
    void product(const Linear& linear, Both& in, Both& out) {
        if constexpr (ALONG)
            linear.forward_along(in.at<false>(), in.at<true>(), rows_, out.at<true>());
        else
            linear.weight.product(in.at<false>(), rows_, out.at<false>());
    }
    template <bool ALONG>
    void product_back(const Linear& linear, Both& in, Both& d_out, Both& d_in) {
        if constexpr (ALONG)
            linear.back_along(
                in.at<false>(), in.at<true>(), d_out.at<false>(), d_out.at<true>(), rows_, d_in.at<true>(), panels_);
        else
            linear.weight.back(in.at<false>(), d_out.at<false>(), rows_, d_in.at<false>(), panels_);
    }

    template <bool ALONG>
    void mlp(Layer& layer) {
        const std::size_t size = layer.active.here.size();
        Both &gate = layer.gate, &value = layer.value, &active = layer.active;
        product<ALONG>(layer.mlp_in, layer.in[1], is_gated() || ALONG ? value : active);
        if (is_gated()) product<ALONG>(layer.mlp_gate, layer.in[1], gate);
        if constexpr (ALONG) {
            if (is_gated())
                for (std::size_t i = 0; i < size; ++i)
                    active.change[i] =
                        layer.slope[i] * gate.change[i] * value.here[i] + gate.here[i] * value.change[i];
            else
                for (std::size_t i = 0; i < size; ++i) active.change[i] = layer.slope[i] * value.change[i];
        } else if (is_gated()) {
            silu_bends(gate.here.data(), layer.bend.data(), size);
            swiglu(gate.here.data(), layer.slope.data(), value.here.data(), active.here.data(), size);
        } else {
            gelu_bends(active.here.data(), layer.bend.data(), size);
            gelu(active.here.data(), layer.slope.data(), size);
        }
        product<ALONG>(layer.mlp_out, active, out_);
    }
    template <bool ALONG>
    void mlp_back(Layer& layer) {
        const std::size_t size = layer.active.here.size();
        Both &gate = layer.gate, &value = layer.value, &d = layer.d_active;
        product_back<ALONG>(layer.mlp_out, layer.active, layer.d_out[1], d);
        Buffer &slope = layer.slope, &bend = layer.bend;
        if (is_gated()) {
            for (std::size_t i = 0; i < size; ++i) {
                if constexpr (ALONG) {
                    layer.d_gate.change[i] = (d.change[i] * value.here[i] + d.here[i] * value.change[i]) * slope[i] +
                                             d.here[i] * value.here[i] * bend[i] * gate.change[i];
                    layer.d_value.change[i] = d.change[i] * gate.here[i] + d.here[i] * slope[i] * gate.change[i];
                } else {
                    layer.d_gate.here[i] = d.here[i] * value.here[i] * slope[i];
                    layer.d_value.here[i] = d.here[i] * gate.here[i];
                }
            }
        } else {
            for (std::size_t i = 0; i < size; ++i) {
                if constexpr (ALONG) {
                    layer.d_value.change[i] = d.change[i] * slope[i] + bend[i] * value.change[i];
                } else {
                    layer.d_value.here[i] = d.here[i] * slope[i];
                    bend[i] *= d.here[i];
                }
            }
        }
        product_back<ALONG>(layer.mlp_in, layer.in[1], layer.d_value, d_in_);
        if (!is_gated()) return;
        product_back<ALONG>(layer.mlp_gate, layer.in[1], layer.d_gate, d_other_);
        add(d_in_.of<ALONG>(), d_other_.of<ALONG>());
    }

    template <bool ALONG>
    Heads heads(Layer& layer, int sequence) {
        const std::ptrdiff_t D = shape_.width, G = kv_width_, W = qkv_width_, first = sequence * shape_.positions;
        const real* projected = layer.projected.at<ALONG>(first * W);
        const View v{projected + D + G, W, 1};
        if (!shape_.qk_norm) return {{projected, W, 1}, {projected + D, W, 1}, v};
        return {{layer.normed_q.at<ALONG>(first * D), D, 1}, {layer.normed_k.at<ALONG>(first * G), G, 1}, v};
    }
    template <bool ALONG>
    View rows_of(Both& both, int sequence) {
        const std::ptrdiff_t D = shape_.width;
        return {both.at<ALONG>(static_cast<std::size_t>(sequence) * shape_.positions * D), D, 1};
    }

    template <bool ALONG>
    void attend(Layer& layer) {
        const int D = shape_.width, W = qkv_width_;
        product<ALONG>(layer.qkv, layer.in[0], layer.projected);
        real *q = layer.projected.at<ALONG>(), *k = q + D;
        if (shape_.qk_norm) {
            normed_heads<ALONG>(layer.q_norm, q, D, layer.normed_q);
            normed_heads<ALONG>(layer.k_norm, k, kv_width_, layer.normed_k);
            turn_heads(layer.normed_q.at<ALONG>(), D, layer.normed_k.at<ALONG>(), kv_width_, 1);
        } else {
            turn_heads(q, W, k, W, 1);
        }
        for (int s = 0; s < sequences_; ++s) {
            const Heads here = heads<false>(layer, s);
            real* to = layer.mixed.at<ALONG>(static_cast<std::size_t>(s) * shape_.positions * D);
            if constexpr (ALONG)
                layer.attention.forward_along(s, here, heads<true>(layer, s), to, D);
            else
                layer.attention.attention.forward(s, here.q, here.k, here.v, to, D, nullptr);
        }
        product<ALONG>(layer.attention_out, layer.mixed, out_);
    }
    template <bool ALONG>
    void attend_back(Layer& layer) {
        const std::ptrdiff_t D = shape_.width, W = qkv_width_;
        product_back<ALONG>(layer.attention_out, layer.mixed, layer.d_out[0], layer.d_mixed);
        for (int s = 0; s < sequences_; ++s) {
            real* d = layer.d_projected.at<ALONG>(static_cast<std::size_t>(s) * shape_.positions * W);
            const HeadGradients to{d, d + D, d + D + kv_width_, W};
            const Heads here = heads<false>(layer, s);
            const View d_out = rows_of<false>(layer.d_mixed, s);
            if constexpr (ALONG)
                layer.attention.back_along(s, here, heads<true>(layer, s), d_out, rows_of<true>(layer.d_mixed, s), to);
            else
                layer.attention.back(s, here, d_out, to);
        }
        real* d = layer.d_projected.at<ALONG>();
        turn_heads(d, W, d + D, W, -1);
        if (shape_.qk_norm) {
            normed_heads_back<ALONG>(layer.q_norm, d, D);
            normed_heads_back<ALONG>(layer.k_norm, d + D, kv_width_);
        }
        product_back<ALONG>(layer.qkv, layer.in[0], layer.d_projected, d_in_);
    }
    // Turn queries and keys, whose rows lie apart by their steps, by their positions.
    void turn_heads(real* q, std::ptrdiff_t q_step, real* k, std::ptrdiff_t k_step, real direction) {
        if (!shape_.angles) return;
        turn(q, q_step, rows_, shape_.positions, context_, shape_.heads, channels_, shape_.angles, direction);
        turn(k, k_step, rows_, shape_.positions, context_, shape_.kv_heads, channels_, shape_.angles, direction);
    }
    // Every head of a row is a row of the norm, so rows are gathered: (rows, heads, channels).
    template <bool ALONG>
    void normed_heads(CurvedNorm& norm, const real* in, std::ptrdiff_t width, Both& out) {
        real* to = out.at<ALONG>();
        for (int r = 0; r < rows_; ++r) std::copy_n(in + static_cast<std::ptrdiff_t>(r) * qkv_width_, width, to + r * width);
        norm_rows<ALONG>(norm, out, rows_ * static_cast<int>(width) / channels_, channels_);
    }
    template <bool ALONG>
    void normed_heads_back(CurvedNorm& norm, real* d_projected, std::ptrdiff_t width) {
        const std::ptrdiff_t W = qkv_width_;
        gathered_.resize(static_cast<std::size_t>(rows_) * width);
        real* d = gathered_.at<ALONG>();
        for (int r = 0; r < rows_; ++r) std::copy_n(d_projected + r * W, width, d + r * width);
        norm_rows_back<ALONG>(norm, gathered_, rows_ * static_cast<int>(width) / channels_, channels_);
        for (int r = 0; r < rows_; ++r) std::copy_n(d + r * width, width, d_projected + r * W);
    }

    // From the last block's output to the gradient there. At the point the softmax of the logits is kept.
    template <bool ALONG>
    void through_head() {
        const int D = shape_.width;
        final_in_.of<ALONG>() = x_.of<ALONG>();
        if (shape_.final_norm >= 0) norm_rows<ALONG>(final_, final_in_, rows_, D);
        scale(final_in_.of<ALONG>(), shape_.head_scale);
        slope_.resize(static_cast<std::size_t>(ROWS_OF_HEAD) * NUM_BYTES);
        for (int first = 0; first < rows_; first += ROWS_OF_HEAD) {
            const int rows = std::min(ROWS_OF_HEAD, rows_ - first);
            const std::size_t at = static_cast<std::size_t>(first) * D;
            real* logits = logits_.at<ALONG>(static_cast<std::size_t>(first) * NUM_BYTES);
            if constexpr (ALONG)
                head_.forward_along(final_in_.at<false>(at), final_in_.at<true>(at), rows, logits);
            else
                head_.weight.product(final_in_.at<false>(at), rows, logits);
            for (int r = 0; r < rows; ++r) of_row<ALONG>(first + r, slope_.data() + r * NUM_BYTES);
            if constexpr (ALONG)
                head_.back_along(
                    final_in_.at<false>(at), final_in_.at<true>(at), slope_.data(), logits, rows, d_.at<true>(at),
                    panels_);
            else
                head_.weight.back(final_in_.at<false>(at), slope_.data(), rows, d_.at<false>(at), panels_);
        }
        scale(d_.of<ALONG>(), shape_.head_scale);
        if (shape_.final_norm >= 0) norm_rows_back<ALONG>(final_, d_, rows_, D);
    }
    static void scale(Buffer& values, double factor) {
        if (factor == 1) return;
        for (real& value : values) value *= static_cast<real>(factor);
    }
    // Write the gradient at the logits of a row. Replace them by their shares, or their derivatives by the gradient's.
    template <bool ALONG>
    void of_row(int row, real* d) {
        const int target = static_cast<int>(bytes_[row + row / shape_.positions + 1]);
        const real per_token = real(1) / (static_cast<real>(all_sequences_) * shape_.positions);
        real* share = logits_.at<false>(static_cast<std::size_t>(row) * NUM_BYTES);
        if constexpr (!ALONG) {
            const real chosen = share[target];
            const Partition found = partition(share);
            for (int i = 0; i < NUM_BYTES; ++i) share[i] /= found.total;
            log_z_[row] = found.log_z;
            loss_ += found.log_z - chosen + (z_loss_ > 0 ? z_loss_ * found.log_z * found.log_z : 0);
        }
        const real factor = per_token * (1 + 2 * z_loss_ * log_z_[row]);
        for (int i = 0; i < NUM_BYTES; ++i) d[i] = share[i] * factor;
        d[target] -= per_token;
        if constexpr (ALONG) {
            real* change = logits_.at<true>(static_cast<std::size_t>(row) * NUM_BYTES);
            const real t_log_z = sum_of(NUM_BYTES, [&](int i) { return share[i] * change[i]; });
            const real t_factor = per_token * 2 * z_loss_ * t_log_z;
            for (int i = 0; i < NUM_BYTES; ++i) change[i] = share[i] * ((change[i] - t_log_z) * factor + t_factor);
        }
    }

    Shape shape_;
    std::vector<Layer> layers_;
    int channels_, kv_width_, qkv_width_;  // of a head, of all keys, of queries, keys and values
    Linear head_;
    CurvedNorm final_;
    int context_ = 0, all_sequences_ = 0;
    int first_ = 0, sequences_ = 0, rows_ = 0;  // of the chunk
    real z_loss_ = 0;
    double loss_ = 0;
    std::vector<std::int64_t> all_bytes_;
    const std::int64_t* bytes_ = nullptr;      // of the chunk
    std::vector<std::vector<Buffer>> chunks_;  // what is kept of each
    BranchFactor factor_;
    Both x_, out_, d_, d_in_, d_other_, final_in_, logits_, gathered_;
    Buffer log_z_, slope_;
    Panels panels_;
};

using Points = Crew<Model>;

}  // namespace
}  // namespace sweep

// Null without memory.
extern "C" void* hessian_create(const sweep::Shape* shape) try {
    return new sweep::Points(*shape);
} catch (const std::bad_alloc&) {
    return nullptr;
}

extern "C" void hessian_destroy(void* points) { delete static_cast<sweep::Points*>(points); }

// Do both passes of each member. params and gradient are (K, parameters), tokens (K, sequences, positions + 1), losses
// (K). Returns 0, or 1 without memory.
extern "C" int hessian_take(
    void* handle, const sweep::Numbers* numbers, int members, int sequences, int threads, const sweep::real* params,
    const std::int64_t* tokens, sweep::real* losses, sweep::real* gradient) {
    sweep::Points& points = *static_cast<sweep::Points*>(handle);
    const std::size_t size = points.shape.parameters;
    const std::size_t bytes = static_cast<std::size_t>(sequences) * (points.shape.positions + 1);
    return points.for_own_models(members, threads, [&](sweep::Model& model, int k) {
        losses[k] = model.take(params + k * size, gradient + k * size, *numbers, k, tokens + k * bytes, sequences);
    });
}

// Multiply the Hessian of each member there by its vector; vectors and products are (K, parameters).
extern "C" int hessian_product(
    void* handle, int members, int threads, const sweep::real* vectors, sweep::real* products) {
    sweep::Points& points = *static_cast<sweep::Points*>(handle);
    const std::size_t size = points.shape.parameters;
    return points.for_own_models(members, threads, [&](sweep::Model& model, int k) {
        model.multiply_by(vectors + k * size, products + k * size);
    });
}

// Measure the curvature of each member with a number of products, one member after the other. divisors and warm are (K,
// parameters), results (K). Returns 0, or 1 without memory.
extern "C" int hessian_curvature(
    void* handle, const sweep::Numbers* numbers, int members, int sequences, int threads, const sweep::real* params,
    const std::int64_t* tokens, int products, const sweep::real* divisors, sweep::real* warm, double* along_gradient,
    double* largest) {
    sweep::Points& points = *static_cast<sweep::Points*>(handle);
    const std::size_t size = points.shape.parameters;
    const std::size_t bytes = static_cast<std::size_t>(sequences) * (points.shape.positions + 1);
    return points.for_members(members, threads, [&](sweep::Model& model, int k) {
        model.meter.gradient.resize(size);
        model.take(params + k * size, model.meter.gradient.data(), *numbers, k, tokens + k * bytes, sequences);
        model.meter.measure(
            products, divisors + k * size, warm + k * size, along_gradient + k, largest + k,
            [&](const sweep::real* vector, sweep::real* to) { model.multiply_by(vector, to); });
    });
}
