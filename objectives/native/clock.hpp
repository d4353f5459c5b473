// Seconds in the parts of a step, for benchmarks/step_profile.py; nothing unless compiled with -DPROFILE.
#pragma once

#ifdef PROFILE
#include <chrono>

namespace sweep {

enum Timed { PRODUCTS, ATTENTION, CROSS_ENTROPY, NORMS, ACTIVATION, WHOLE, NUM_TIMED };
inline thread_local double seconds_of[NUM_TIMED] = {};

struct Clock {
    Timed part;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

    explicit Clock(Timed timed) : part(timed) {}
    ~Clock() { seconds_of[part] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }
};

}  // namespace sweep

// Write the seconds of this thread since the last call.
extern "C" void gpt_seconds(double* to) {
    for (int part = 0; part < sweep::NUM_TIMED; ++part) to[part] = sweep::seconds_of[part], sweep::seconds_of[part] = 0;
}
#define TIMED(part) const Clock clock(part)
#else
#define TIMED(part)
#endif
