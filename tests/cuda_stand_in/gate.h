/* A gate before every step of every stream, that a test closes and lets steps through. */
#ifndef GATE_H
#define GATE_H

#include <condition_variable>
#include <mutex>

struct Gate {
    std::mutex lock;
    std::condition_variable changed;
    bool closed = false;
    unsigned long allowed = 0;
    unsigned long waiting = 0;

    /* Called by a stream before a step. */
    void pass() {
        std::unique_lock<std::mutex> held(lock);
        if (closed && allowed == 0) {
            waiting++;
            changed.notify_all();
            changed.wait(held, [this] { return !closed || allowed > 0; });
            waiting--;
        }
        if (closed) {
            allowed--;
        }
        changed.notify_all();
    }

    void close() {
        std::lock_guard<std::mutex> held(lock);
        closed = true;
        allowed = 0;
    }

    void open() {
        std::lock_guard<std::mutex> held(lock);
        closed = false;
        changed.notify_all();
    }

    /* Lets `steps` through, and returns when they are done and a stream stands before the next one. */
    void allow(unsigned long steps) {
        std::unique_lock<std::mutex> held(lock);
        allowed += steps;
        changed.notify_all();
        changed.wait(held, [this] { return !closed || (allowed == 0 && waiting > 0); });
    }
};

#endif
