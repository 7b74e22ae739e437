//! The client: one request at a time to one address after another, until one answers.

use crate::message::{KeyValue, Transaction, TransactionAnswer, key_values, number, range_end, text};
use crate::{EtcdError, Target};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use ureq::RequestBuilder;
use ureq::config::Config;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::WithBody;

/// Longest answer: a thousand keys, of which the largest have tens of kilobytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Keys in one answer to a range.
const RANGE_KEYS: usize = 1000;
/// Longest line of a watch: its first lines only say that something has changed.
const WATCH_LINE_BYTES_MAX: u64 = 4 << 20;
/// An address that answers with an error of its own, such as a member without a leader, is left alone so long before all are asked again.
const PAUSE: Duration = Duration::from_millis(20);
/// How a connection ends that the other side does not want.
const ENDS: [ErrorKind; 4] = [
    ErrorKind::UnexpectedEof,
    ErrorKind::ConnectionReset,
    ErrorKind::ConnectionAborted,
    ErrorKind::BrokenPipe,
];
/// gRPC's number for a token that is not valid (any more).
const UNAUTHENTICATED: i64 = 16;

/// A client of one cluster, for any number of threads.
pub struct Client {
    target: Target,
    /// Begins a POST to an address; keeps connections.
    post: Box<dyn Fn(String) -> RequestBuilder<WithBody> + Send + Sync>,
    attempt: Duration,
    /// The address that answered last.
    preferred: AtomicUsize,
    token: Mutex<Option<String>>,
}

/// A lease of etcd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Its number.
    pub id: i64,
    /// How long it lasts after each renewal; etcd may give more than was asked for.
    pub ttl: Duration,
}

/// What one address made of a request.
enum Attempt {
    Answer(Value),
    /// It said no for good.
    No(EtcdError),
    /// Another address may do better.
    Elsewhere(String),
    /// The token is too old.
    Unauthenticated(String),
}

impl Client {
    /// A client that gives each address so long to answer. Nothing is sent yet.
    ///
    /// # Errors
    /// [`EtcdError::Target`] if a file that the target names cannot be read.
    pub fn new(target: Target, attempt: Duration) -> Result<Self, EtcdError> {
        let mut builder = Config::builder()
            // A proxy of the environment is for the web.
            .proxy(None)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections(64)
            .max_idle_connections_per_host(16)
            .timeout_connect(Some(attempt));
        if target.tls {
            builder = builder.tls_config(tls(&target)?);
        }
        let http = builder.build().new_agent();
        let post = Box::new(move |address: String| http.post(address));
        Ok(Self { target, post, attempt, preferred: AtomicUsize::new(0), token: Mutex::new(None) })
    }

    /// Where it is.
    pub const fn target(&self) -> &Target {
        &self.target
    }

    /// A key, as it is in the whole cluster at this moment, and the revision.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn get(&self, key: &[u8]) -> Result<(Option<KeyValue>, i64), EtcdError> {
        let answer = self.call("kv/range", &json!({"key": text(key)}), self.all_once())?;
        let found = key_values(&answer).zip(number(&answer["header"]["revision"]));
        let (found, revision) = found.ok_or_else(|| self.strange("kv/range"))?;
        Ok((found.into_iter().next(), revision))
    }

    /// All keys that begin so, as they were at one moment, ascending.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn range(&self, prefix: &[u8]) -> Result<Vec<KeyValue>, EtcdError> {
        let end = range_end(prefix);
        let mut first = prefix.to_vec();
        let mut revision = 0;
        let mut all = Vec::new();
        loop {
            let question = json!({
                "key": text(&first),
                "range_end": text(&end),
                "limit": RANGE_KEYS.to_string(),
                "revision": revision.to_string(),
            });
            let answer = self.call("kv/range", &question, self.all_once())?;
            let found = key_values(&answer).ok_or_else(|| self.strange("kv/range"))?;
            if revision == 0 {
                revision = number(&answer["header"]["revision"]).ok_or_else(|| self.strange("kv/range"))?;
            }
            let is_last = found.len() < RANGE_KEYS;
            if let Some(last) = found.last() {
                first.clone_from(&last.key);
                first.push(0);
            }
            all.extend(found);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Carries out a transaction; it must bear being sent twice.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn transact(&self, transaction: &Transaction) -> Result<TransactionAnswer, EtcdError> {
        let answer = self.call("kv/txn", &transaction.json(), self.all_once())?;
        transaction.answer(&answer).ok_or_else(|| self.strange("kv/txn"))
    }

    /// A new lease.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn grant(&self, ttl: Duration) -> Result<Lease, EtcdError> {
        let seconds = ttl.as_millis().div_ceil(1000).max(1);
        let answer = self.call("lease/grant", &json!({"TTL": seconds.to_string()}), self.all_once())?;
        match (number(&answer["ID"]), number(&answer["TTL"]).map(u64::try_from)) {
            (Some(id), Some(Ok(ttl))) if id != 0 && ttl > 0 => {
                Ok(Lease { id, ttl: Duration::from_secs(ttl) })
            }
            _ => Err(self.strange("lease/grant")),
        }
    }

    /// Renews a lease; gives whether it is still there.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub fn keep_alive(&self, lease: i64) -> Result<bool, EtcdError> {
        let answer = self.call("lease/keepalive", &json!({"ID": lease.to_string()}), self.all_once())?;
        let ttl = number(&answer["result"]["TTL"]).ok_or_else(|| self.strange("lease/keepalive"))?;
        Ok(ttl > 0)
    }

    /// Ends a lease, and with it the keys that are tied to it.
    ///
    /// # Errors
    /// [`EtcdError`], also if there is no such lease.
    pub fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        self.call("lease/revoke", &json!({"ID": lease.to_string()}), self.all_once()).map(drop)
    }

    /// Waits until a key changes behind a revision; gives whether it did, `false` when time is over or the watch broke.
    ///
    /// # Errors
    /// [`EtcdError`] if etcd says no.
    pub fn watch(&self, key: &[u8], after: i64, within: Duration) -> Result<bool, EtcdError> {
        let start = (after + 1).to_string();
        let question = json!({"create_request": {"key": text(key), "start_revision": start}});
        let address = self.address(self.preferred.load(Ordering::Relaxed)); // Relaxed: a hint where to begin
        let Ok(response) = self.send(address, "watch", &question, within) else { return Ok(false) };
        let lines = response.into_body().into_with_config().limit(u64::MAX).reader();
        let mut lines = BufReader::new(lines);
        loop {
            let mut line = Vec::new();
            // Time that is over is an error of reading too.
            if lines.by_ref().take(WATCH_LINE_BYTES_MAX).read_until(b'\n', &mut line).is_err()
                || line.is_empty()
            {
                return Ok(false);
            }
            let Ok(said) = serde_json::from_slice::<Value>(&line) else { return Ok(true) };
            if said["result"]["events"].as_array().is_some_and(|events| !events.is_empty())
                || said["result"]["canceled"].as_bool() == Some(true)
                || said["error"] != Value::Null
            {
                return Ok(true);
            }
        }
    }

    /// Time enough to ask every address once.
    fn all_once(&self) -> Duration {
        // At most sixteen addresses: the cast loses nothing.
        self.attempt * self.target.addresses.len() as u32
    }

    fn address(&self, number: usize) -> &str {
        &self.target.addresses[number % self.target.addresses.len()]
    }

    /// Asks one address after another, each once.
    fn call(&self, path: &str, question: &Value, within: Duration) -> Result<Value, EtcdError> {
        let deadline = Instant::now() + within;
        let first = self.preferred.load(Ordering::Relaxed); // Relaxed: a hint where to begin
        let mut tried = Vec::new();
        let mut signed_in = false;
        let mut step = 0;
        while step < self.target.addresses.len() {
            if step > 0 && Instant::now() >= deadline {
                break;
            }
            let number = first + step;
            match self.attempt(self.address(number), path, question)? {
                Attempt::Answer(answer) => {
                    if step > 0 {
                        self.preferred.store(number % self.target.addresses.len(), Ordering::Relaxed); // as above
                    }
                    return Ok(answer);
                }
                Attempt::No(error) => return Err(error),
                Attempt::Unauthenticated(text) if signed_in || self.target.user.is_none() => {
                    let hint = " (hint: this etcd wants a user: `etcd://NAME@HOST:PORT?password=FILE`)";
                    return Err(EtcdError::Refused { code: UNAUTHENTICATED, text, hint });
                }
                Attempt::Unauthenticated(_) => {
                    // Tokens end after some minutes: a new one, and the same address again.
                    *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    signed_in = true;
                    continue;
                }
                Attempt::Elsewhere(what) => {
                    tried.push(format!("{}: {what}", self.address(number)));
                    step += 1;
                    // Whoever asks next begins with another address.
                    self.preferred.store((number + 1) % self.target.addresses.len(), Ordering::Relaxed); // as above
                }
            }
        }
        std::thread::sleep(PAUSE);
        Err(EtcdError::Silent { tried: tried.join("; ") })
    }

    fn attempt(&self, address: &str, path: &str, question: &Value) -> Result<Attempt, EtcdError> {
        if self.target.user.is_some()
            && self.token.lock().unwrap_or_else(PoisonError::into_inner).is_none()
            && let Some(stop) = self.sign_in(address)?
        {
            return Ok(stop);
        }
        Ok(self.ask(address, path, question))
    }

    /// Gets a token; an attempt that failed if there is none.
    fn sign_in(&self, address: &str) -> Result<Option<Attempt>, EtcdError> {
        let (Some(user), Some(file)) = (&self.target.user, &self.target.password) else { return Ok(None) };
        let password = read(file)?;
        let password = String::from_utf8_lossy(&password);
        let question = json!({"name": user, "password": password.trim_end_matches(['\n', '\r'])});
        match self.ask(address, "auth/authenticate", &question) {
            Attempt::Answer(answer) => {
                let token = answer["token"].as_str().map(str::to_owned);
                let token = token.ok_or_else(|| self.strange("auth/authenticate"))?;
                *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
                Ok(None)
            }
            // Nobody needs a name there: go on without one.
            Attempt::No(EtcdError::Refused { text, .. })
                if text.contains("authentication is not enabled") =>
            {
                *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(String::new());
                Ok(None)
            }
            other => Ok(Some(other)),
        }
    }

    fn send(
        &self,
        address: &str,
        path: &str,
        question: &Value,
        within: Duration,
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let scheme = if self.target.tls { "https" } else { "http" };
        let request = (self.post)(format!("{scheme}://{address}/v3/{path}"));
        let mut request =
            request.config().timeout_global(Some(within)).build().content_type("application/json");
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(token) = token.filter(|token| !token.is_empty()) {
            request = request.header("Authorization", token);
        }
        request.send(question.to_string())
    }

    fn ask(&self, address: &str, path: &str, question: &Value) -> Attempt {
        let response = match self.send(address, path, question, self.attempt) {
            Ok(response) => response,
            Err(error) => return failed(address, self.target.tls, error),
        };
        let status = response.status().as_u16();
        let mut body = Vec::new();
        let mut reader = response.into_body().into_with_config().limit(ANSWER_BYTES_MAX).reader();
        if let Err(error) = reader.read_to_end(&mut body) {
            return Attempt::Elsewhere(format!("its answer breaks off: {error}"));
        }
        let not_etcd = |what: String| Attempt::No(EtcdError::NotEtcd { address: address.to_owned(), what });
        let Ok(answer) = serde_json::from_slice::<Value>(&body) else {
            return not_etcd(format!("status {status} and no JSON"));
        };
        if status == 200 && answer["error"] == Value::Null {
            return Attempt::Answer(answer);
        }
        let (code, said) = refusal(&answer);
        // Users or roles were changed since the token was given: a new one knows of it.
        if code == UNAUTHENTICATED || said.contains("auth store is old") {
            return Attempt::Unauthenticated(said);
        }
        if said.is_empty() {
            return not_etcd(format!("status {status}"));
        }
        EtcdError::of_answer(code, &said).map_or(Attempt::Elsewhere(said), Attempt::No)
    }

    fn strange(&self, path: &str) -> EtcdError {
        let address = self.target.addresses.join(",");
        EtcdError::NotEtcd { address, what: format!("its answer to {path} cannot be read") }
    }
}

/// The number and the words of a refusal, in the forms of different releases.
fn refusal(answer: &Value) -> (i64, String) {
    let inner = if answer["error"].is_object() { &answer["error"] } else { answer };
    let code = number(&inner["code"]).or_else(|| number(&inner["grpc_code"])).unwrap_or(0);
    let said = inner["message"].as_str().or_else(|| inner["error"].as_str()).unwrap_or("");
    (code, said.to_owned())
}

fn failed(address: &str, is_tls: bool, error: ureq::Error) -> Attempt {
    let other = if is_tls { "without TLS it is etcd://" } else { "with TLS it is etcds://" };
    let tls = |what: String| Attempt::No(EtcdError::Tls { address: address.to_owned(), what });
    match error {
        ureq::Error::Timeout(_) => Attempt::Elsewhere("no answer in time".to_owned()),
        ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused => {
            Attempt::Elsewhere("nobody listens there".to_owned())
        }
        // What rustls finds wrong comes as an error of reading.
        ureq::Error::Io(error) if error.kind() == ErrorKind::InvalidData => tls(error.to_string()),
        ureq::Error::Rustls(error) => tls(error.to_string()),
        ureq::Error::Tls(what) => tls(what.to_owned()),
        ureq::Error::HostNotFound => Attempt::Elsewhere("the host's name is not known".to_owned()),
        // As does a server that speaks only the other way.
        ureq::Error::Io(error) if ENDS.contains(&error.kind()) => {
            Attempt::Elsewhere(format!("it ends the connection ({error}); {other}"))
        }
        ureq::Error::Protocol(error) => {
            Attempt::Elsewhere(format!("it does not speak HTTP ({error}); {other}"))
        }
        other => Attempt::Elsewhere(other.to_string()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, EtcdError> {
    std::fs::read(path).map_err(|error| unusable(path, &error.to_string()))
}

fn unusable(path: &Path, why: &str) -> EtcdError {
    EtcdError::File { path: path.display().to_string(), why: why.to_owned() }
}

fn tls(target: &Target) -> Result<TlsConfig, EtcdError> {
    let mut builder = TlsConfig::builder();
    if let Some(ca) = &target.ca {
        let certificates = certificates(ca)?;
        builder = builder.root_certs(RootCerts::new_with_certs(&certificates));
    }
    if let (Some(cert), Some(key)) = (&target.cert, &target.key) {
        let private = PrivateKey::from_pem(&read(key)?).map_err(|error| unusable(key, &error.to_string()))?;
        builder = builder.client_cert(Some(ClientCert::new_with_certs(&certificates(cert)?, private)));
    }
    Ok(builder.build())
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, EtcdError> {
    let mut found = Vec::new();
    for item in parse_pem(&read(path)?) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| unusable(path, &error.to_string()))? {
            found.push(certificate);
        }
    }
    if found.is_empty() { Err(unusable(path, "it holds no certificate in PEM")) } else { Ok(found) }
}
