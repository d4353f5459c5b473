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

// The numbers of two vectors in turn, from their first or from their second halves. Compilers would load a vector that is
// written out number by number so.
#ifdef __clang__
#define INTERLEAVED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define INTERLEAVED(a, b, ...) __builtin_shuffle(a, b, decltype(a < b){__VA_ARGS__})
#endif

// Transpose a square of numbers; floats fill 16 bytes a row, which every processor with vectors shuffles fast.
constexpr int SIDE_OF_SQUARE = 4;
inline void transpose_square(const real* from, std::ptrdiff_t from_step, real* to, std::ptrdiff_t to_step) {
    using row_t = Vector<SIDE_OF_SQUARE>::type;
    row_t row[SIDE_OF_SQUARE];
    for (int i = 0; i < SIDE_OF_SQUARE; ++i) row[i] = load<SIDE_OF_SQUARE>(from + i * from_step);
    for (int i = 0; i < 2; ++i) {
        const row_t a = row[0], b = row[1], c = row[2], d = row[3];
        row[0] = INTERLEAVED(a, c, 0, 4, 1, 5), row[1] = INTERLEAVED(a, c, 2, 6, 3, 7);
        row[2] = INTERLEAVED(b, d, 0, 4, 1, 5), row[3] = INTERLEAVED(b, d, 2, 6, 3, 7);
    }
    for (int i = 0; i < SIDE_OF_SQUARE; ++i) store<SIDE_OF_SQUARE>(to + i * to_step, row[i]);
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
        return {data.data(), panel_step(), NUM_COLUMNS, depth, columns};
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
        data.resize(count() * panel_step());
        if (from.column_step == 1) {
            for (int k = 0; k < depth; ++k) copy(from.data + k * from.row_step, data.data() + k * NUM_COLUMNS);
            return;
        }
        for (int first = 0; first < columns; first += NUM_COLUMNS)
            transpose(
                from.data + first * from.column_step, from.column_step, from.row_step, depth,
                std::min(NUM_COLUMNS, columns - first), data.data() + first / NUM_COLUMNS * panel_step());
    }

private:
    // Whether few rows fall into the same set of a cache with 8 lines of 64 bytes in each of 64 sets.
    static bool is_spread(std::ptrdiff_t row_step, int depth) {
        constexpr int BYTES = 64 * 64, ROWS_OF_SET = 4;
        const int bytes = static_cast<int>(row_step * sizeof(real) % BYTES);
        return std::min(depth, DEPTH_OF_BLOCK) <= ROWS_OF_SET * std::min(64, BYTES / std::gcd(bytes, BYTES));
    }
    // Panels lie a line of the cache further apart than they are long, so that those of a row share no set.
    std::ptrdiff_t panel_step() const { return static_cast<std::ptrdiff_t>(depth) * NUM_COLUMNS + LANES; }
    // Copy a row to its places in all panels.
    void copy(const real* from, real* to) const {
        int c = 0;
        for (; c + NUM_COLUMNS <= columns; c += NUM_COLUMNS, to += panel_step())
            store(to, load(from + c)), store(to + LANES, load(from + c + LANES));
        for (int i = 0; c < columns; ++c, ++i) to[i] = from[c];
    }
    static void transpose(
        const real* from, std::ptrdiff_t column_step, std::ptrdiff_t row_step, int depth, int width, real* to) {
        constexpr int SIDE = SIDE_OF_SQUARE;
        int c = 0;
        for (; c + SIDE <= width && row_step == 1; c += SIDE, from += SIDE * column_step) {
            int k = 0;
            for (; k + SIDE <= depth; k += SIDE)
                transpose_square(from + k, column_step, to + k * NUM_COLUMNS + c, NUM_COLUMNS);
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
