// Models of one shape, one for each thread or for each member, and the threads that work with them.
#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <thread>

#include "gpt_shape.hpp"

namespace sweep {

template <typename Model>
class Crew {
public:
    explicit Crew(const Shape& given) : shape(given), parts_(given.parts, given.parts + given.depth * NUM_PARTS) {
        shape.parts = parts_.data();
        if (!given.angles) return;
        const std::size_t count = static_cast<std::size_t>(given.positions) * (given.width / given.heads);
        angles_.assign(given.angles, given.angles + count);
        shape.angles = angles_.data();
    }
    Crew(const Crew&) = delete;
    Crew& operator=(const Crew&) = delete;

    // Let each thread take one member after the other, with the thread's model. Returns 0, or 1 without memory.
    template <typename Work>
    int for_members(int members, int threads, Work work) {
        return in_threads(std::max(1, std::min(threads, members)), members, threads, work, true);
    }
    // The same with a model for each member, which keeps what it was told.
    template <typename Work>
    int for_own_models(int members, int threads, Work work) {
        return in_threads(members, members, threads, work, false);
    }

    Shape shape;

private:
    template <typename Work>
    int in_threads(int models, int members, int threads, Work work, bool are_of_threads) try {
        threads = std::max(1, std::min(threads, members));
        while (static_cast<int>(models_.size()) < models) models_.push_back(std::make_unique<Model>(shape));
        std::atomic<int> next{0};
        std::atomic<bool> failed{false};
        const auto of_thread = [&](int thread) {
            try {
                for (int k = next++; k < members; k = next++) work(*models_[are_of_threads ? thread : k], k);
            } catch (const std::bad_alloc&) {
                failed = true;
            }
        };
        std::vector<std::thread> others;
        for (int thread = 1; thread < threads; ++thread) others.emplace_back(of_thread, thread);
        of_thread(0);
        for (std::thread& other : others) other.join();
        return failed;
    } catch (const std::exception&) {
        return 1;
    }

    std::vector<std::int64_t> parts_;
    std::vector<double> angles_;
    std::vector<std::unique_ptr<Model>> models_;
};

}  // namespace sweep
