//! What is said to whoever runs the program.
//!
//! A thread of its own says it. Whoever serves the program must not wait for its stderr: where that is also the program's own, a pipe or a terminal, the kernel
//! holds it for a thread of the program that writes to it from far memory, and that thread waits for who serves it.

use hinterland_os::process::name_thread;
use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Lines that wait to be said: more than a run has to say, unless nobody takes them.
const WAITING_MAX: usize = 1024;
/// How long the end of a run waits until all is said.
const PATIENCE: Duration = Duration::from_secs(2);

enum Word {
    Line(String),
    /// All before it has been said when this is dropped.
    Mark(SyncSender<()>),
}

static SPEAKER: OnceLock<Option<SyncSender<Word>>> = OnceLock::new();

/// Says a line on stderr, and does not wait until it is said.
pub(crate) fn say(text: impl Display) {
    let line = line(text);
    match SPEAKER.get_or_init(start) {
        // What nobody takes is not said.
        Some(speaker) => drop(speaker.try_send(Word::Line(line))),
        None => write(&line),
    }
}

/// Says a line at once, where nobody goes on afterwards.
pub(crate) fn say_last(text: impl Display) {
    write(&line(text));
}

/// Waits until what was said so far is there, or nobody takes it.
pub(crate) fn finish() {
    if let Some(Some(speaker)) = SPEAKER.get() {
        let (mark, said) = sync_channel(0);
        if speaker.try_send(Word::Mark(mark)).is_ok() {
            // An error either way: the mark is dropped, or nobody takes what is said.
            let _ = said.recv_timeout(PATIENCE);
        }
    }
}

fn line(text: impl Display) -> String {
    format!("hinterland: {text}\n")
}

fn start() -> Option<SyncSender<Word>> {
    let (speaker, words) = sync_channel(WAITING_MAX);
    let speak = move || {
        name_thread("far-words");
        speak(&words);
    };
    std::thread::Builder::new().name("far-words".to_owned()).spawn(speak).ok().map(|_| speaker)
}

fn speak(words: &Receiver<Word>) {
    while let Ok(word) = words.recv() {
        match word {
            Word::Line(line) => write(&line),
            Word::Mark(mark) => drop(mark),
        }
    }
}

/// Where stderr is full, or a pipe that nobody reads any more, the program goes on all the same: a word that cannot be said is no reason to end it.
fn write(line: &str) {
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
