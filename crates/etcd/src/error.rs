//! Why etcd did not do what was asked.

use crate::TargetError;

/// A request to etcd failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No address answered in time, or the connection broke: whether the request was carried out is not known.
    #[error(
        "etcd does not answer: {tried} (hint: is it running, and can this host reach it? `etcdctl --endpoints=... endpoint health`)"
    )]
    Silent {
        /// Each address that was tried, and what happened there.
        tried: String,
    },
    /// etcd said no: nothing was carried out.
    #[error("etcd refuses: {text}{hint}")]
    Refused {
        /// The number of the reason, as gRPC counts them.
        code: i64,
        /// Its words.
        text: String,
        /// What to try, with a blank before it; may be empty.
        hint: &'static str,
    },
    /// Something answers there that is not etcd, or one that is too old.
    #[error(
        "{address} answers, but not as etcd 3.4 or later does: {what} (hint: name etcd's client address, mostly port 2379)"
    )]
    NotEtcd {
        /// The address.
        address: String,
        /// What was wrong.
        what: String,
    },
    /// TLS failed: certificates do not fit.
    #[error(
        "TLS with {address} fails: {what} (hint: `?ca=FILE` names the authority that signed etcd's certificate, `cert=` and `key=` what this host shows)"
    )]
    Tls {
        /// The address.
        address: String,
        /// What was wrong.
        what: String,
    },
    /// A file that the address names is of no use.
    #[error(
        "{path} of --directory cannot be used: {why} (hint: `?ca=`, `cert=` and `key=` name files in PEM, `password=` one with the password alone)"
    )]
    File {
        /// Which.
        path: String,
        /// What was wrong.
        why: String,
    },
    /// The address of etcd makes no sense.
    #[error(transparent)]
    Target(#[from] TargetError),
}

impl EtcdError {
    /// Whether the request may have been carried out all the same.
    pub const fn is_in_doubt(&self) -> bool {
        matches!(self, Self::Silent { .. })
    }

    /// The error that etcd's own answer stands for; `None` if another address may do better.
    pub(crate) fn of_answer(code: i64, text: &str) -> Option<Self> {
        // Numbers of gRPC: 4 is a deadline, 14 is a member that has no leader or is stopping.
        if matches!(code, 1 | 4 | 14) {
            return None;
        }
        let hint = match code {
            3 if text.contains("user name is empty") => {
                " (hint: this etcd wants a user: `etcd://NAME@HOST:PORT?password=FILE`)"
            }
            3 if text.contains("authentication failed") => {
                " (hint: the name before the @, or the password in the file of `?password=FILE`, is wrong)"
            }
            3 if text.contains("too large") || text.contains("too many operations") => {
                " (hint: run etcd with its limits or higher ones: --max-txn-ops=128 --max-request-bytes=1572864)"
            }
            7 => {
                " (hint: the user needs a role that may read and write the prefix: `etcdctl role grant-permission`)"
            }
            8 => {
                " (hint: etcd is full: `etcdctl compact`, `etcdctl defrag` and `etcdctl alarm disarm`; run it with --auto-compaction-retention)"
            }
            _ => "",
        };
        Some(Self::Refused { code, text: text.to_owned(), hint })
    }
}
