// Products of small row-major matrices, in registers: the compiler turns the fixed loops into vector instructions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
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

typedef real vector_t __attribute__((vector_size(BYTES_OF_VECTOR), aligned(sizeof(real)), may_alias));

inline vector_t load(const real* from) { return *reinterpret_cast<const vector_t*>(from); }
inline void store(real* to, vector_t value) { *reinterpret_cast<vector_t*>(to) = value; }

// A matrix in memory: element (row, column) is at data[row * row_step + column * column_step].
struct View {
    const real* data;
    std::ptrdiff_t row_step, column_step;
};

// The right factor of a product, (depth, columns), in panels of NUM_COLUMNS columns. What the last one has beyond the
// columns may be anything: it adds to nothing that is kept.
struct Panels {
    std::vector<real> data;
    int depth = 0, columns = 0;

    int count() const { return (columns + NUM_COLUMNS - 1) / NUM_COLUMNS; }
    const real* panel(int number) const { return data.data() + static_cast<std::size_t>(number) * depth * NUM_COLUMNS; }

    void pack(View from, int new_depth, int new_columns) {
        depth = new_depth, columns = new_columns;
        data.resize(static_cast<std::size_t>(count()) * depth * NUM_COLUMNS);
        for (int p = 0; p < count(); ++p) {
            real* to = data.data() + static_cast<std::size_t>(p) * depth * NUM_COLUMNS;
            const int first = p * NUM_COLUMNS, width = std::min(NUM_COLUMNS, columns - first);
            if (from.column_step == 1) {
                for (int k = 0; k < depth; ++k, to += NUM_COLUMNS) copy(from.data + k * from.row_step + first, width, to);
            } else {
                for (int c = 0; c < width; ++c) {
                    const real* column = from.data + (first + c) * from.column_step;
                    for (int k = 0; k < depth; ++k) to[k * NUM_COLUMNS + c] = column[k * from.row_step];
                }
            }
        }
    }

private:
    static void copy(const real* from, int width, real* to) {
        int c = 0;
        for (; c + LANES <= width; c += LANES) store(to + c, load(from + c));
        for (; c < width; ++c) to[c] = from[c];
    }
};

// At least one term. The sums stay in registers: after a loop that may run no times, or one that is not unrolled,
// compilers send them through memory.
template <int ROWS, int VECTORS>
inline void rows_times_panel(
    const real* left, std::ptrdiff_t row_step, std::ptrdiff_t depth_step, const real* right, int depth, real* out,
    std::ptrdiff_t out_step, bool adds, int width) {
    vector_t sum[ROWS][VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) sum[r][v] = vector_t{};
    const real* const end = right + static_cast<std::ptrdiff_t>(depth) * NUM_COLUMNS;
    do {
        vector_t b[VECTORS];
        for (int v = 0; v < VECTORS; ++v) b[v] = load(right + v * LANES);
        for (int r = 0; r < ROWS; ++r) {
            const vector_t a = left[r * row_step] - vector_t{};
            for (int v = 0; v < VECTORS; ++v) sum[r][v] += a * b[v];
        }
        left += depth_step, right += NUM_COLUMNS;
    } while (right != end);
    if (width == VECTORS * LANES) {
        if (adds)
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; ++r)
                for (int v = 0; v < VECTORS; ++v) sum[r][v] += load(out + r * out_step + v * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < VECTORS; ++v) store(out + r * out_step + v * LANES, sum[r][v]);
        return;
    }
    real values[ROWS][VECTORS * LANES];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) store(values[r] + v * LANES, sum[r][v]);
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
inline void rows_times_panel(
    int rows, const real* left, std::ptrdiff_t row_step, std::ptrdiff_t depth_step, const real* right, int depth,
    real* out, std::ptrdiff_t out_step, bool adds, int width) {
    if (rows >= ROWS) {
        if (width > LANES)
            rows_times_panel<ROWS, 2>(left, row_step, depth_step, right, depth, out, out_step, adds, width);
        else
            rows_times_panel<ROWS, 1>(left, row_step, depth_step, right, depth, out, out_step, adds, width);
        rows -= ROWS, left += ROWS * row_step, out += ROWS * out_step;
    }
    if constexpr (ROWS > 1)
        if (rows)
            rows_times_panel<power_of_two_below(ROWS)>(
                rows, left, row_step, depth_step, right, depth, out, out_step, adds, width);
}

// What of a product is needed: all, for rows r and columns c only c >= r, or of the sums over k only k <= r or k >= r.
enum class Needed { ALL, UPPER, UP_TO_ROW, FROM_ROW };

// out = left right, or out += left right; out is (rows, right.columns) with rows out_step apart. Tiles of which nothing
// is needed are left as they are.
template <Needed NEEDED = Needed::ALL>
inline void multiply(View left, int rows, const Panels& right, real* out, std::ptrdiff_t out_step, bool adds) {
    for (int k = 0; k < right.depth; k += DEPTH_OF_BLOCK) {
        for (int p = 0; p < right.count(); ++p) {
            const int first = p * NUM_COLUMNS, width = std::min(NUM_COLUMNS, right.columns - first);
            for (int r = 0; r < rows; r += NUM_ROWS) {
                const int count = std::min(NUM_ROWS, rows - r);
                const int least = NEEDED == Needed::FROM_ROW ? r : 0;
                const int most = NEEDED == Needed::UP_TO_ROW ? std::min(r + count, right.depth) : right.depth;
                const int start = std::max(k, least), depth = std::min(k + DEPTH_OF_BLOCK, most) - start;
                if (depth <= 0 || (NEEDED == Needed::UPPER && first + width <= r)) continue;
                rows_times_panel<NUM_ROWS>(
                    count, left.data + r * left.row_step + start * left.column_step, left.row_step, left.column_step,
                    right.panel(p) + static_cast<std::size_t>(start) * NUM_COLUMNS, depth, out + r * out_step + first,
                    out_step, adds || k > least, width);
            }
        }
    }
}

}  // namespace sweep
