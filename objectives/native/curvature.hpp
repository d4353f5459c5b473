// The curvature of one member at a time, as objectives/instruments/curvature.py measures it: Rayleigh-Ritz on the span of
// the vectors that were multiplied by the Hessian. A member's vectors stay in the cache, and no sum depends on others.
#pragma once

#include <limits>

#include "elementwise.hpp"
#include "subnormal.hpp"

namespace sweep {

// The sum of term(i) for vectors of numbers from i on, in a fixed order; ``size`` is whole vectors (stacking.BLOCK).
template <typename Term>
inline real sum_of_vectors(std::size_t size, Term term) {
    vector_t even = {}, odd = {};  // two chains of sums, as one waits for itself
    std::size_t i = 0;
    for (; i + 2 * LANES <= size; i += 2 * LANES) even += term(i), odd += term(i + LANES);
    for (; i < size; i += LANES) even += term(i);
    return sum_of_lanes<LANES>(even + odd);
}
inline real dot(const real* a, const real* b, std::size_t size) {
    return sum_of_vectors(size, [&](std::size_t i) { return load(a + i) * load(b + i); });
}

// Scale a vector to length 1 and return its former length. Zeros stay, and what is not finite becomes NaN.
inline real make_unit(real* vector, std::size_t size) {
    vector_t largest = {};
    for (std::size_t i = 0; i < size; i += LANES) {
        const vector_t next = load(vector + i);
        largest = next > largest ? next : largest;
        largest = -next > largest ? -next : largest;
    }
    real highest = largest[0];
    for (int lane = 1; lane < LANES; ++lane) highest = largest[lane] > highest ? largest[lane] : highest;
    // Squares of very small or large numbers would underflow or overflow.
    const real inverse = highest > 0 ? 1 / highest : 1;
    const real length = std::sqrt(sum_of_vectors(size, [&](std::size_t i) {
        const vector_t scaled = load(vector + i) * inverse;
        return scaled * scaled;
    }));
    if (length == 0) return 0;
    const real shorten = 1 / length;
    for (std::size_t i = 0; i < size; ++i) vector[i] = vector[i] * inverse * shorten;
    return length / inverse;
}

// Orthonormal vectors, their images by a symmetric matrix A, and the products of both.
class Span {
public:
    void begin(std::size_t size, int most) {
        size_ = size, most_ = most, count_ = 0;
        vectors_.resize(size * most), images_.resize(size * most), shares_.resize(most), lengths_.resize(most);
        matrix_.resize(static_cast<std::size_t>(most) * most);
    }
    // Where the next vector is written, and its image. ``add`` takes both; the vector's length is 1, or 0.
    real* vector() { return vectors_.data() + count_ * size_; }
    real* image() { return images_.data() + count_ * size_; }
    void add() {
        const int last = count_++;
        const real *vector = at(vectors_, last), *image = at(images_, last);
        for (int p = 0; p < last; ++p) matrix_[last * most_ + p] = dot(vector, at(images_, p), size_);
        for (int p = 0; p <= last; ++p) matrix_[p * most_ + last] = dot(image, at(vectors_, p), size_);
        lengths_[last] = std::sqrt(dot(vector, vector, size_));
    }

    // Make the next vector orthogonal to all others, of length 1; zeros if nothing is left.
    void orthogonalize() {
        real* rest = vector();
        make_unit(rest, size_);
        for (int pass = 0; pass < 2; ++pass) {  // the second one removes the rounding error of the first
            for (int p = 0; p < count_; ++p) shares_[p] = -dot(rest, at(vectors_, p), size_);
            add_combination(vectors_, rest);
        }
        const real length = make_unit(rest, size_);
        if (length <= ROUNDINGS * std::numeric_limits<real>::epsilon()) std::fill(rest, rest + size_, real(0));
    }

    // Return the largest eigenvalue of A in the span, and write A's image of its eigenvector: of a power of the small
    // matrix, shifted to be positive, only the projection on its largest eigenvalue is left.
    double ritz(real* best) {
        const int P = count_;
        symmetric_.resize(static_cast<std::size_t>(P) * P);
        for (int p = 0; p < P; ++p)
            for (int q = 0; q < P; ++q)
                symmetric_[p * P + q] = (static_cast<double>(matrix_[p * most_ + q]) + matrix_[q * most_ + p]) / 2;
        power_ = symmetric_;
        const double norm = norm_of(power_);
        for (double& value : power_) value /= norm == 0 ? 1 : norm;
        // The eigenvalues of vectors of length 1 become positive; others stay zero.
        for (int p = 0; p < P; ++p) power_[p * P + p] += 2 * lengths_[p];
        for (int number = 0; number < SQUARINGS && !is_projection(); ++number) square();
        int strongest = 0;
        for (int p = 1; p < P; ++p)
            if (power_[p * P + p] > power_[strongest * P + strongest]) strongest = p;
        const double* row = power_.data() + strongest * P;
        double squares = 0, value = 0;
        for (int p = 0; p < P; ++p) squares += row[p] * row[p];
        for (int p = 0; p < P; ++p)
            for (int q = 0; q < P; ++q) value += row[p] * symmetric_[p * P + q] * row[q];
        for (int p = 0; p < P; ++p) shares_[p] = static_cast<real>(row[p] / std::sqrt(squares));
        std::fill(best, best + size_, real(0));
        add_combination(images_, best);
        return value / squares;
    }

private:
    static constexpr int ROUNDINGS = 1000;  // a vector within these of the span is not a new direction
    static constexpr int SQUARINGS = 40;    // the power of 1e12; eigenvalues that it cannot separate count as one

    const real* at(const std::vector<real>& rows, int row) const { return rows.data() + row * size_; }
    void add_combination(const std::vector<real>& rows, real* to) const {
        constexpr std::size_t BLOCK = 2048;  // numbers that stay in the first-level cache
        for (std::size_t first = 0; first < size_; first += BLOCK) {
            const std::size_t end = std::min(first + BLOCK, size_);
            for (int p = 0; p < count_; ++p) {
                const real *row = at(rows, p), share = shares_[p];
                for (std::size_t i = first; i < end; i += LANES) store(to + i, load(to + i) + share * load(row + i));
            }
        }
    }
    static double norm_of(const std::vector<double>& values) {
        double squares = 0;
        for (double value : values) squares += value * value;
        return std::sqrt(squares);
    }
    // Divide the power by its norm, and return whether its trace is the norm, too: then its rank is one.
    bool is_projection() {
        const double norm = norm_of(power_);
        double trace = 0;
        for (double& value : power_) value /= norm;
        for (int p = 0; p < count_; ++p) trace += power_[p * count_ + p];
        return trace <= 1 + 4 * std::numeric_limits<double>::epsilon();
    }
    void square() {
        const int P = count_;
        squared_.assign(power_.size(), 0);
        for (int p = 0; p < P; ++p)
            for (int k = 0; k < P; ++k)
                for (int q = 0; q < P; ++q) squared_[p * P + q] += power_[p * P + k] * power_[k * P + q];
        std::swap(power_, squared_);
    }

    std::size_t size_ = 0;
    int most_ = 0, count_ = 0;
    std::vector<real> vectors_, images_, matrix_, shares_, lengths_;
    std::vector<double> symmetric_, power_, squared_;
};

// Measures the members that a thread takes, one after the other.
class CurvatureMeter {
public:
    std::vector<real> gradient;  // of the member, given before

    // ``multiply(vector, to)`` writes products with the Hessian. ``warm`` is replaced by what starts the next measurement.
    template <typename Multiply>
    void measure(
        int products, const real* divisor, real* warm, double* along_gradient, double* largest, Multiply multiply) {
        const WithoutSubnormals here;
        const std::size_t size = gradient.size();
        scale_.resize(size), scaled_.resize(size);
        for (std::size_t i = 0; i < size; ++i) scale_[i] = 1 / std::sqrt(divisor[i]);
        span_.begin(size, products);
        make_unit(gradient.data(), size);
        scale(gradient.data(), span_.vector());
        const real stretch = make_unit(span_.vector(), size);
        for (int number = 0; number < products; ++number) {
            if (number && !(number == 1 && begins_warm(warm))) {
                span_.ritz(span_.vector());
                span_.orthogonalize();
            }
            scale(span_.vector(), scaled_.data());
            multiply(scaled_.data(), span_.image());
            if (!number) {
                const double along = static_cast<double>(stretch) * dot(gradient.data(), span_.image(), size);
                *along_gradient = stretch == 0 ? std::numeric_limits<double>::quiet_NaN() : along;
            }
            scale(span_.image(), span_.image());
            span_.add();
        }
        *largest = span_.ritz(warm);
        make_finite_unit(warm);
    }

private:
    // Write the warm vector as the next one, and return whether it adds anything.
    bool begins_warm(const real* warm) {
        real* next = span_.vector();
        std::copy_n(warm, gradient.size(), next);
        make_finite_unit(next);
        span_.orthogonalize();
        return dot(next, next, gradient.size()) != 0;
    }
    void make_finite_unit(real* vector) const {
        if (!std::isfinite(make_unit(vector, gradient.size()))) std::fill(vector, vector + gradient.size(), real(0));
    }
    void scale(const real* from, real* to) const {
        for (std::size_t i = 0; i < scale_.size(); ++i) to[i] = scale_[i] * from[i];
    }

    Span span_;
    std::vector<real> scale_, scaled_;
};

}  // namespace sweep
