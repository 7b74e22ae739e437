/* Streams: each a thread that does what was put on it, one step after the other; and events. */
#ifndef STREAMS_H
#define STREAMS_H

#include "gate.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

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

    void put(std::function<void()> step) {
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

/* An event that nobody has recorded is done, as on a GPU. */
struct Event {
    std::mutex lock;
    std::condition_variable changed;
    unsigned long recorded = 0;
    unsigned long reached = 0;

    void record(Stream &stream) {
        std::lock_guard<std::mutex> held(lock);
        unsigned long number = ++recorded;
        stream.put([this, number] {
            std::lock_guard<std::mutex> inner(lock);
            reached = number;
            changed.notify_all();
        });
    }

    bool is_done() {
        std::lock_guard<std::mutex> held(lock);
        return reached == recorded;
    }

    void wait() {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [this] { return reached == recorded; });
    }
};

#endif
