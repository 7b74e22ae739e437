/* Streams: each a thread that does what was put on it, one step after the other; and events. */
#ifndef STREAMS_H
#define STREAMS_H

#include "gate.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

struct Stream {
    Gate &gate;
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> steps;
    bool busy = false;

    explicit Stream(Gate &gate) : gate(gate) {
        /* Never ended: a stream that is destroyed does what was put on it, as on a GPU. */
        std::thread([this] { serve(); }).detach();
    }

    /* What this thread captures in place of putting it on a stream, if it does. */
    static std::vector<std::function<void()>> *&captured() {
        static thread_local std::vector<std::function<void()>> *steps = nullptr;
        return steps;
    }

    void put(std::function<void()> step) {
        if (captured()) {
            captured()->push_back(std::move(step));
            return;
        }
        std::lock_guard<std::mutex> held(lock);
        steps.push_back(std::move(step));
        changed.notify_all();
    }

    void wait() {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [this] { return steps.empty() && !busy; });
    }

  private:
    void serve() {
        for (;;) {
            std::unique_lock<std::mutex> held(lock);
            changed.wait(held, [this] { return !steps.empty(); });
            std::function<void()> step = std::move(steps.front());
            steps.pop_front();
            busy = true;
            held.unlock();
            gate.pass();
            step();
            held.lock();
            busy = false;
            changed.notify_all();
        }
    }
};

/* An event that nobody has recorded is done, as on a GPU. It may be recorded again before an earlier record is reached: who waits
 * for that one still waits for it. */
struct Event {
    std::mutex lock;
    std::condition_variable changed;
    unsigned long recorded = 0;
    std::set<unsigned long> open;

    void record(Stream &stream) {
        std::lock_guard<std::mutex> held(lock);
        if (Stream::captured()) {
            return;
        }
        unsigned long number = ++recorded;
        open.insert(number);
        stream.put([this, number] {
            std::lock_guard<std::mutex> inner(lock);
            open.erase(number);
            changed.notify_all();
        });
    }

    /* What waits for the last record. */
    std::function<void()> waiter() {
        std::lock_guard<std::mutex> held(lock);
        unsigned long number = recorded;
        return [this, number] {
            std::unique_lock<std::mutex> inner(lock);
            changed.wait(inner, [this, number] { return open.count(number) == 0; });
        };
    }

    bool is_done() {
        std::lock_guard<std::mutex> held(lock);
        return open.count(recorded) == 0;
    }

    void wait() {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [this] { return open.count(recorded) == 0; });
    }
};

#endif
