// Numbers too small for all their digits, as zero: arithmetic with them takes a hundred times as long, and members
// whose gradients fade or whose losses blow up are full of them.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace sweep {

// While it lives, this thread reads subnormal numbers as zero and writes zero for them.
class WithoutSubnormals {
#if defined(__SSE2__)
    static constexpr unsigned FLUSHES = 0x8040;  // results, and operands
    unsigned before_ = _mm_getcsr();

public:
    WithoutSubnormals() { _mm_setcsr(before_ | FLUSHES); }
    ~WithoutSubnormals() { _mm_setcsr((_mm_getcsr() & ~FLUSHES) | (before_ & FLUSHES)); }
#elif defined(__aarch64__)
    static constexpr std::uint64_t FLUSHES = 1u << 24;
    std::uint64_t before_;

    static void set(std::uint64_t control) { asm volatile("msr fpcr, %0" : : "r"(control) : "memory"); }

public:
    WithoutSubnormals() {
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        set(before_ | FLUSHES);
    }
    ~WithoutSubnormals() { set(before_); }
#else
public:
    WithoutSubnormals() {}
    ~WithoutSubnormals() {}
#endif
    WithoutSubnormals(const WithoutSubnormals&) = delete;
    WithoutSubnormals& operator=(const WithoutSubnormals&) = delete;
};

}  // namespace sweep
