// Products of small row-major matrices, in registers: the compiler turns the fixed loops into vector instructions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <numeric>
#include <vector>

#ifndef REAL
#define REAL float
#endif

namespace sweep {

using real = REAL;

#if defined(__AVX512F__)
constexpr int BYTES_OF_VECTOR = 64, NUM_ROWS = 12;
#elif defined(__AVX__)
constexpr int BYTES_OF_VECTOR = 32, NUM_ROWS = 6;
#else
constexpr int BYTES_OF_VECTOR = 16, NUM_ROWS = 6;
#endif
constexpr int LANES = BYTES_OF_VECTOR / static_cast<int>(sizeof(real));
constexpr int NUM_COLUMNS = 2 * LANES;  // of a panel
constexpr int DEPTH_OF_BLOCK = 256;     // terms of a sum at a time, so that a panel stays in the first-level cache

// Rows of a tile whose terms begin or end at the diagonal: no tile has columns of two vectors there.
constexpr int ROWS_OF_TRIANGLE = std::min(LANES, NUM_ROWS > 8 ? 8 : 4);

// A type in a struct, since a template's argument loses the attributes of a type.
template <int COUNT>
struct Vector {
    typedef real type __attribute__((vector_size(COUNT * sizeof(real)), aligned(sizeof(real)), may_alias));
};
typedef Vector<LANES>::type vector_t;

template <int COUNT = LANES>
inline typename Vector<COUNT>::type load(const real* from) {
    return *reinterpret_cast<const typename Vector<COUNT>::type*>(from);
}
template <int COUNT = LANES>
inline void store(real* to, typename Vector<COUNT>::type value) {
    *reinterpret_cast<typename Vector<COUNT>::type*>(to) = value;
}

// Memory that begins with a line of the cache, so that no vector lies across two.
template <typename Value>
struct AlignedAllocator {
    using value_type = Value;
    static constexpr std::align_val_t ALIGNMENT{64};

    AlignedAllocator() = default;
    template <typename Other>
    AlignedAllocator(const AlignedAllocator<Other>&) {}
    Value* allocate(std::size_t count) { return static_cast<Value*>(::operator new(count * sizeof(Value), ALIGNMENT)); }
    void deallocate(Value* values, std::size_t) { ::operator delete(values, ALIGNMENT); }
    friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) { return true; }
    friend bool operator!=(const AlignedAllocator&, const AlignedAllocator&) { return false; }
};
using Buffer = std::vector<real, AlignedAllocator<real>>;

// A matrix in memory: element (row, column) is at data[row * row_step + column * column_step].
struct View {
    const real* data;
    std::ptrdiff_t row_step, column_step;
};

// Transpose a square of numbers; floats fill 16 bytes a row, which every processor with vectors shuffles fast.
constexpr int SIDE_OF_SQUARE = 4;
template <int SIDE>
inline void transpose_square(const real* from, std::ptrdiff_t from_step, real* to, std::ptrdiff_t to_step) {
    using row_t = typename Vector<SIDE>::type;
    const row_t a = load<SIDE>(from), b = load<SIDE>(from + from_step), c = load<SIDE>(from + 2 * from_step),
                d = load<SIDE>(from + 3 * from_step);
    const row_t ac = {a[0], c[0], a[1], c[1]}, bd = {b[0], d[0], b[1], d[1]};
    const row_t ca = {a[2], c[2], a[3], c[3]}, db = {b[2], d[2], b[3], d[3]};
    store<SIDE>(to, row_t{ac[0], bd[0], ac[1], bd[1]});
    store<SIDE>(to + to_step, row_t{ac[2], bd[2], ac[3], bd[3]});
    store<SIDE>(to + 2 * to_step, row_t{ca[0], db[0], ca[1], db[1]});
    store<SIDE>(to + 3 * to_step, row_t{ca[2], db[2], ca[3], db[3]});
}

// The right factor of a product, (depth, columns), in panels of NUM_COLUMNS columns, each row by row.
struct Right {
    const real* data;
    std::ptrdiff_t panel_step, row_step;
    int depth, columns;

    int count() const { return (columns + NUM_COLUMNS - 1) / NUM_COLUMNS; }
    const real* row(int panel, int k) const { return data + panel * panel_step + k * row_step; }
};

// A right factor that is packed. What the last panel has beyond the columns may be anything: it adds to nothing that is
// kept.
struct Panels {
    Buffer data;
    int depth = 0, columns = 0;

    int count() const { return (columns + NUM_COLUMNS - 1) / NUM_COLUMNS; }
    operator Right() const {
        return {data.data(), static_cast<std::ptrdiff_t>(depth) * NUM_COLUMNS, NUM_COLUMNS, depth, columns};
    }

    // The right factor as it is, if its rows are whole vectors and a panel stays in the first-level cache, or packed.
    Right of(View from, int new_depth, int new_columns) {
        const bool is_whole = new_columns % LANES == 0 || new_columns == LANES / 2;
        if (from.column_step == 1 && is_whole && is_spread(from.row_step, new_depth))
            return {from.data, NUM_COLUMNS, from.row_step, new_depth, new_columns};
        pack(from, new_depth, new_columns);
        return *this;
    }

    void pack(View from, int new_depth, int new_columns) {
        depth = new_depth, columns = new_columns;
        data.resize(static_cast<std::size_t>(count()) * depth * NUM_COLUMNS);
        for (int p = 0; p < count(); ++p) {
            real* to = data.data() + static_cast<std::size_t>(p) * depth * NUM_COLUMNS;
            const int first = p * NUM_COLUMNS, width = std::min(NUM_COLUMNS, columns - first);
            if (from.column_step == 1) {
                for (int k = 0; k < depth; ++k, to += NUM_COLUMNS) copy(from.data + k * from.row_step + first, width, to);
            } else {
                transpose(from.data + first * from.column_step, from.column_step, from.row_step, depth, width, to);
            }
        }
    }

private:
    // Whether few rows fall into the same set of a cache with 8 lines of 64 bytes in each of 64 sets.
    static bool is_spread(std::ptrdiff_t row_step, int depth) {
        constexpr int BYTES = 64 * 64, ROWS_OF_SET = 4;
        const int bytes = static_cast<int>(row_step * sizeof(real) % BYTES);
        return std::min(depth, DEPTH_OF_BLOCK) <= ROWS_OF_SET * std::min(64, BYTES / std::gcd(bytes, BYTES));
    }
    static void copy(const real* from, int width, real* to) {
        int c = 0;
        for (; c + LANES <= width; c += LANES) store(to + c, load(from + c));
        for (; c < width; ++c) to[c] = from[c];
    }
    static void transpose(
        const real* from, std::ptrdiff_t column_step, std::ptrdiff_t row_step, int depth, int width, real* to) {
        constexpr int SIDE = SIDE_OF_SQUARE;
        int c = 0;
        for (; c + SIDE <= width && row_step == 1; c += SIDE, from += SIDE * column_step) {
            int k = 0;
            for (; k + SIDE <= depth; k += SIDE)
                transpose_square<SIDE>(from + k, column_step, to + k * NUM_COLUMNS + c, NUM_COLUMNS);
            for (; k < depth; ++k)
                for (int i = 0; i < SIDE; ++i) to[k * NUM_COLUMNS + c + i] = from[i * column_step + k];
        }
        for (; c < width; ++c, from += column_step)
            for (int k = 0; k < depth; ++k) to[k * NUM_COLUMNS + c] = from[k * row_step];
    }
};

// At least one term. The sums stay in registers: after a loop that may run no times, or one that is not unrolled,
// compilers send them through memory.
template <int ROWS, int VECTORS, int COUNT>
inline void multiply_tile(
    const real* left, std::ptrdiff_t row_step, std::ptrdiff_t depth_step, const real* right, std::ptrdiff_t right_step,
    int depth, real* out, std::ptrdiff_t out_step, bool adds, int width) {
    using type = typename Vector<COUNT>::type;
    type sum[ROWS][VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) sum[r][v] = type{};
    const real* const end = right + depth * right_step;
    do {
        type b[VECTORS];
        for (int v = 0; v < VECTORS; ++v) b[v] = load<COUNT>(right + v * COUNT);
        for (int r = 0; r < ROWS; ++r) {
            const type a = left[r * row_step] - type{};
            for (int v = 0; v < VECTORS; ++v) sum[r][v] += a * b[v];
        }
        left += depth_step, right += right_step;
    } while (right != end);
    if (width == VECTORS * COUNT) {
        if (adds)
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; ++r)
                for (int v = 0; v < VECTORS; ++v) sum[r][v] += load<COUNT>(out + r * out_step + v * COUNT);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECTORS; ++v) store<COUNT>(out + r * out_step + v * COUNT, sum[r][v]);
        return;
    }
    real values[ROWS][VECTORS * COUNT];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) store<COUNT>(values[r] + v * COUNT, sum[r][v]);
    for (int r = 0; r < ROWS; ++r, out += out_step)
        for (int c = 0; c < width; ++c) out[c] = adds ? out[c] + values[r][c] : values[r][c];
}

constexpr int power_of_two_below(int count) {
    int power = 1;
    while (2 * power < count) power *= 2;
    return power;
}

// Any number of rows up to ROWS, in tiles of ROWS and of powers of two below, since each size takes time to compile.
template <int ROWS>
inline void multiply_rows(
    int rows, const real* left, std::ptrdiff_t row_step, std::ptrdiff_t depth_step, const real* right,
    std::ptrdiff_t right_step, int depth, real* out, std::ptrdiff_t out_step, bool adds, int width) {
    if (rows >= ROWS) {
        const auto tile = width > LANES       ? multiply_tile<ROWS, 2, LANES>
                          : width > LANES / 2 ? multiply_tile<ROWS, 1, LANES>
                                              : multiply_tile<ROWS, 1, LANES / 2>;
        tile(left, row_step, depth_step, right, right_step, depth, out, out_step, adds, width);
        rows -= ROWS, left += ROWS * row_step, out += ROWS * out_step;
    }
    if constexpr (ROWS > 1)
        if (rows)
            multiply_rows<power_of_two_below(ROWS)>(
                rows, left, row_step, depth_step, right, right_step, depth, out, out_step, adds, width);
}

// What of a product is needed: all, for rows r and columns c only c >= r, or of the sums over k only k <= r or k >= r.
enum class Needed { ALL, UPPER, UP_TO_ROW, FROM_ROW };

// out = left right, or out += left right; out is (rows, right.columns) with rows out_step apart. Vectors of a tile of
// which nothing is needed are left as they are.
template <Needed NEEDED = Needed::ALL>
inline void multiply(View left, int rows, const Right& right, real* out, std::ptrdiff_t out_step, bool adds) {
    constexpr int ROWS = NEEDED == Needed::ALL ? NUM_ROWS : ROWS_OF_TRIANGLE;
    for (int k = 0; k < right.depth; k += DEPTH_OF_BLOCK) {
        for (int p = 0; p < right.count(); ++p) {
            const int first = p * NUM_COLUMNS, width = std::min(NUM_COLUMNS, right.columns - first);
            for (int r = 0; r < rows; r += ROWS) {
                const int count = std::min(ROWS, rows - r);
                const int least = NEEDED == Needed::FROM_ROW ? r : 0;
                const int most = NEEDED == Needed::UP_TO_ROW ? std::min(r + count, right.depth) : right.depth;
                const int start = std::max(k, least), depth = std::min(k + DEPTH_OF_BLOCK, most) - start;
                const int skipped = NEEDED == Needed::UPPER && first + LANES <= r ? LANES : 0;
                if (depth <= 0 || (NEEDED == Needed::UPPER && first + width <= r)) continue;
                multiply_rows<ROWS>(
                    count, left.data + r * left.row_step + start * left.column_step, left.row_step, left.column_step,
                    right.row(p, start) + skipped, right.row_step, depth, out + r * out_step + first + skipped,
                    out_step, adds || k > least, width - skipped);
            }
        }
    }
}

}  // namespace sweep
