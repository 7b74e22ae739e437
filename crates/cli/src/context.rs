//! What a command has besides its own arguments: where to write, and which node to ask.

use crate::failure::Failure;
use crate::output::Output;
use crate::service;
use hinterland_fabric::tcp::Tls;
use hinterland_os::notice::Notice;
use hinterland_pool::{Patience, Pool, RingChoice, Silence};
use std::fmt::Display;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// After this long somebody who waits for the node is told so.
const NOTICE: Duration = Duration::from_secs(1);
/// The same for other nodes: later, since the own one knows more of itself, and is to speak first.
const NOTICE_OF_OTHERS: Duration = Duration::from_millis(1500);
/// How long a command that only looks waits for an answer.
const LOOK_WITHIN: Duration = Duration::from_secs(30);

/// What all commands share.
#[derive(Clone, Debug)]
pub struct Context {
    /// Where it writes.
    pub output: Output,
    /// The node's socket, if one was named.
    pub socket: Option<PathBuf>,
    /// Whether people were told that something is waited for.
    is_told: Arc<AtomicBool>,
}

impl Context {
    /// What all commands share, nothing of it told.
    pub fn new(output: Output, socket: Option<PathBuf>) -> Self {
        let socket = socket.or_else(hinterland_pool::named_socket);
        Self { output, socket, is_told: Arc::default() }
    }

    /// The socket that is meant.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(hinterland_pool::default_socket)
    }

    /// Tells systemd that the command serves from now on, and in a few words what.
    pub fn tell_ready(&self, words: impl Display) {
        if let Err(error) = service::tell_ready(&words.to_string()) {
            self.output.warn(format_args!("systemd is not told that this serves: {error}"));
        }
    }

    /// A connection to the pool through the node, for what may take long. While the node is silent, people are told; what is done
    /// goes on when it answers.
    ///
    /// # Errors
    /// [`Failure`] with exit status 3 if no node answers.
    pub fn pool(&self) -> Result<Pool, Failure> {
        self.connect(None)
    }

    /// The same for a command that only looks: it gives up after half a minute.
    ///
    /// # Errors
    /// As [`pool`](Self::pool).
    pub fn pool_to_look(&self) -> Result<Pool, Failure> {
        self.connect(Some(LOOK_WITHIN))
    }

    /// The same for what is asked again and again: nothing is said, and no answer is waited for longer than `patience`.
    ///
    /// # Errors
    /// As [`pool`](Self::pool).
    pub fn pool_to_watch(&self, patience: Duration) -> Result<Pool, Failure> {
        // A command is one thread, and over the socket it hears how long the node is silent.
        let pool = Pool::connect_over(Some(&self.socket()), RingChoice::Socket)?;
        pool.session().on_silence(patience, |_| false)?;
        Ok(pool)
    }

    fn connect(&self, limit: Option<Duration>) -> Result<Pool, Failure> {
        let (context, mut is_said) = (self.clone(), false);
        let patience = Patience::new(NOTICE, move |silence| {
            let goes_on = limit.is_none_or(|limit| silence.waited < limit);
            // Whoever gives up says it as an error.
            if goes_on {
                // A word about others is no reason for silence on the own node: it is what the others were waited for.
                context.is_told.store(true, Ordering::Relaxed); // Relaxed: a flag that orders nothing.
                if !std::mem::replace(&mut is_said, true) {
                    context.output.say(format_args!("waiting for {}", wait(silence)));
                }
            }
            goes_on
        });
        if let Some(path) = std::env::var_os("HINTERLAND_KEY_FILE").filter(|path| !path.is_empty()) {
            self.warn_of_key(Path::new(&path));
        }
        if let Some(folder) = std::env::var_os("HINTERLAND_TLS").filter(|folder| !folder.is_empty()) {
            self.warn_of_key(&Tls::key_file(Path::new(&folder)));
        }
        Ok(Pool::connect_patiently(Some(&self.socket()), patience)?)
    }

    /// Says, once, that others can read the file with the pool's key, or with that of the own certificate.
    pub fn warn_of_key(&self, path: &Path) {
        const OTHERS_READ: u32 = 0o004;
        static IS_SAID: AtomicBool = AtomicBool::new(false);
        let is_open = std::fs::metadata(path)
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & OTHERS_READ != 0);
        // Relaxed: a flag that orders nothing.
        if is_open && !IS_SAID.swap(true, Ordering::Relaxed) {
            self.output.warn(format_args!(
                "all users of this host can read the key in {path}, and so use the pool (hint: chmod 600 {path})",
                path = path.display()
            ));
        }
    }

    /// A wait for nodes that this command talks to past its own begins: people are told of it, and of each that comes behind, if it lasts.
    pub fn notice(&self, words: impl Display + Send + 'static) -> Notice {
        let context = self.clone();
        Notice::begin(NOTICE_OF_OTHERS, move || {
            // Relaxed: as where the own node is told of.
            if !context.is_told.swap(true, Ordering::Relaxed) {
                context.output.say(format_args!("waiting for {words}"));
            }
        })
    }
}

/// What is waited for while the own node is silent.
fn wait(silence: &Silence) -> String {
    if silence.is_stopped {
        format!("the node, whose process {} is stopped (hint: {})", silence.process, silence.hint())
    } else {
        "the node, which has much to do, or waits for the directory or another node".to_owned()
    }
}
