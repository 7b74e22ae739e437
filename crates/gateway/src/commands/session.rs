//! Commands about the connection itself.

use super::{Call, Outcome, REDIS_VERSION, Refusal};
use crate::connection::{End, Silence};
use crate::transaction::{Pending, Transaction};
use hinterland_resp::{Version, number, options};

/// Longest name of a connection or a library.
const NAME_BYTES_MAX: usize = 256;

impl Call<'_> {
    pub(super) fn ping(&mut self) -> Outcome {
        match self.words.len() {
            1 => self.replies.simple("PONG"),
            2 => return self.echo(),
            _ => return Err(Refusal::arity("ping")),
        }
        Ok(())
    }

    pub(super) fn echo(&mut self) -> Outcome {
        self.take_room(self.words.get(1).len())?;
        self.replies.bulk(self.words.get(1));
        Ok(())
    }

    pub(super) fn quit(&mut self) -> Outcome {
        self.caller.end = Some(End::AfterReplies);
        self.ok()
    }

    pub(super) fn multi(&mut self) -> Outcome {
        if self.caller.pending.transaction.is_some() {
            return Err(Refusal::text("ERR MULTI calls can not be nested"));
        }
        self.caller.pending.transaction = Some(Transaction::default());
        self.ok()
    }

    pub(super) fn discard(&mut self) -> Outcome {
        if self.caller.pending.transaction.is_none() {
            return Err(Refusal::text("ERR DISCARD without MULTI"));
        }
        self.caller.pending = Pending::default();
        self.ok()
    }

    pub(super) fn watch(&mut self) -> Outcome {
        if self.caller.pending.transaction.is_some() {
            return Err(Refusal::text("ERR WATCH inside MULTI is not allowed"));
        }
        for key in self.words.from(1) {
            self.caller.pending.watch(self.context, self.caller.database, key)?;
        }
        self.ok()
    }

    pub(super) fn unwatch(&mut self) -> Outcome {
        self.caller.pending.unwatch();
        self.ok()
    }

    pub(super) fn reset(&mut self) -> Outcome {
        self.caller.pending = Pending::default();
        self.caller.silence = Silence::None;
        self.caller.database = 0;
        self.caller.is_known = self.context.shared.password.is_none();
        self.replies.version = Version::Two;
        self.context.shared.update(self.caller.id, |client| {
            (client.name, client.database, client.version) = (String::new(), 0, 2);
        });
        self.replies.simple("RESET");
        Ok(())
    }

    pub(super) fn select(&mut self) -> Outcome {
        let database = options::database(self.words.get(1), self.context.shared.options.databases)?;
        self.caller.database = database;
        self.context.shared.update(self.caller.id, |client| client.database = database);
        self.ok()
    }

    pub(super) fn auth(&mut self) -> Outcome {
        let (user, password) = match self.words.len() {
            2 => (&b"default"[..], self.words.get(1)),
            3 => (self.words.get(1), self.words.get(2)),
            _ => return Err(Refusal::syntax()),
        };
        if self.words.len() == 2 && self.context.shared.password.is_none() {
            return Err(Refusal::text(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
            ));
        }
        self.check_password(user, password)?;
        self.ok()
    }

    fn check_password(&mut self, user: &[u8], password: &[u8]) -> Outcome {
        // Without a password, any is right, as for the default user of Redis.
        let is_right = self.context.shared.password.is_none_or(|right| blake3::hash(password) == right);
        if user != b"default" || !is_right {
            return Err(Refusal::text("WRONGPASS invalid username-password pair or user is disabled."));
        }
        self.caller.is_known = true;
        Ok(())
    }

    pub(super) fn hello(&mut self) -> Outcome {
        let version = match self.words.len() {
            1 => self.replies.version,
            _ => match number::parse(self.words.get(1)) {
                Some(2) => Version::Two,
                Some(3) => Version::Three,
                Some(_) => return Err(Refusal::text("NOPROTO unsupported protocol version")),
                None => {
                    return Err(Refusal::text("ERR Protocol version is not an integer or out of range"));
                }
            },
        };
        let mut name = None;
        let mut words = self.words.from(2);
        while let Some(word) = words.next() {
            let unknown = || {
                let word = String::from_utf8_lossy(word).into_owned();
                Refusal::text(format!("ERR Syntax error in HELLO option '{word}'"))
            };
            match word.to_ascii_uppercase().as_slice() {
                b"AUTH" => {
                    let (user, password) = (words.next(), words.next());
                    self.check_password(user.ok_or_else(unknown)?, password.ok_or_else(unknown)?)?;
                }
                b"SETNAME" => name = Some(printable(words.next().ok_or_else(unknown)?)?),
                _ => return Err(unknown()),
            }
        }
        if !self.caller.is_known {
            return Err(Refusal::text(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
            ));
        }
        self.replies.version = version;
        let number = if version == Version::Three { 3 } else { 2 };
        self.context.shared.update(self.caller.id, |client| {
            client.version = number;
            if let Some(name) = name {
                client.name = name;
            }
        });
        self.replies.map(7);
        let mut pair = |key: &str, value: &str| {
            self.replies.bulk(key.as_bytes());
            self.replies.bulk(value.as_bytes());
        };
        pair("server", "hinterland");
        pair("version", REDIS_VERSION);
        self.replies.bulk(b"proto");
        self.replies.integer(i64::from(number));
        self.replies.bulk(b"id");
        self.replies.integer(i64::try_from(self.caller.id).unwrap_or(i64::MAX));
        let mut pair = |key: &str, value: &str| {
            self.replies.bulk(key.as_bytes());
            self.replies.bulk(value.as_bytes());
        };
        pair("mode", "standalone");
        pair("role", "master");
        self.replies.bulk(b"modules");
        self.replies.array(0);
        Ok(())
    }

    pub(super) fn client(&mut self) -> Outcome {
        let id = self.caller.id;
        match self.subcommand().as_slice() {
            b"ID" => self.replies.integer(i64::try_from(id).unwrap_or(i64::MAX)),
            b"SETNAME" => {
                let name = printable(self.words.get(2))?;
                self.context.shared.update(id, |client| client.name = name);
                return self.ok();
            }
            b"GETNAME" => {
                let name = self.context.shared.clients().get(&id).map(|client| client.name.clone());
                match name.filter(|name| !name.is_empty()) {
                    Some(name) => self.replies.bulk(name.as_bytes()),
                    None => self.replies.nil(),
                }
            }
            b"SETINFO" => return self.set_library(),
            b"INFO" => {
                let line = self.context.shared.clients().get(&id).map(|client| client.line(id));
                self.replies.text(&line.unwrap_or_default());
            }
            b"LIST" => return self.list_clients(),
            // There is nothing to evict or touch differently for one client.
            b"NO-EVICT" | b"NO-TOUCH" => return self.on_or_off(),
            b"REPLY" => return self.reply(),
            _ => {
                return self.help(&[
                    "CLIENT <subcommand>.",
                    "GETNAME, ID, INFO, LIST, NO-EVICT, NO-TOUCH, REPLY, SETINFO, SETNAME",
                ]);
            }
        }
        Ok(())
    }

    /// Says which replies the client wants.
    fn reply(&mut self) -> Outcome {
        if self.caller.pending.transaction.is_some() {
            // EXEC would answer with fewer replies than it says.
            return Err(Refusal::text("ERR CLIENT REPLY inside MULTI is not allowed (hint: say it before)"));
        }
        match self.words.get(2).to_ascii_uppercase().as_slice() {
            b"ON" => {
                self.caller.silence = Silence::None;
                return self.ok();
            }
            b"OFF" => self.caller.silence = Silence::All,
            b"SKIP" if self.caller.silence == Silence::All => {}
            b"SKIP" => self.caller.silence = Silence::Next,
            _ => return Err(Refusal::syntax()),
        }
        Ok(())
    }

    /// All clients, or those of a kind, or some by their numbers.
    fn list_clients(&mut self) -> Outcome {
        let is = |index: usize, name: &str| self.words.get(index).eq_ignore_ascii_case(name.as_bytes());
        let kinds = ["normal", "master", "replica", "slave", "pubsub"];
        let mut wanted = None;
        if self.words.len() == 4 && is(2, "TYPE") {
            if !kinds.iter().any(|kind| is(3, kind)) {
                let kind = String::from_utf8_lossy(self.words.get(3)).into_owned();
                return Err(Refusal::text(format!("ERR Unknown client type '{kind}'")));
            }
            // There are none of another kind.
            wanted = Some(Vec::new()).filter(|_| !is(3, "normal"));
        } else if self.words.len() >= 4 && is(2, "ID") {
            let numbers =
                self.words.from(3).map(|word| number::parse(word).and_then(|id| u64::try_from(id).ok()));
            let numbers: Option<Vec<u64>> = numbers.collect();
            wanted = Some(numbers.ok_or_else(|| Refusal::text("ERR Invalid client ID"))?);
        } else if self.words.len() != 2 {
            return Err(Refusal::syntax());
        }
        let clients = self.context.shared.clients();
        let shown = clients.iter().filter(|(id, _)| wanted.as_ref().is_none_or(|wanted| wanted.contains(id)));
        let lines: String = shown.map(|(id, client)| client.line(*id)).collect();
        drop(clients);
        self.replies.text(&lines);
        Ok(())
    }

    fn on_or_off(&mut self) -> Outcome {
        match self.words.get(2).to_ascii_uppercase().as_slice() {
            b"ON" | b"OFF" => self.ok(),
            _ => Err(Refusal::syntax()),
        }
    }

    fn set_library(&mut self) -> Outcome {
        let value = printable(self.words.get(3))?;
        let is_version = match self.words.get(2).to_ascii_uppercase().as_slice() {
            b"LIB-NAME" => false,
            b"LIB-VER" => true,
            _ => {
                let other = String::from_utf8_lossy(self.words.get(2)).into_owned();
                return Err(Refusal::text(format!("ERR Unrecognized option '{other}'")));
            }
        };
        self.context.shared.update(self.caller.id, |client| {
            let place = if is_version { &mut client.library.1 } else { &mut client.library.0 };
            *place = value;
        });
        self.ok()
    }
}

/// A name that fits a line of `CLIENT LIST`.
fn printable(name: &[u8]) -> Result<String, Refusal> {
    let text = std::str::from_utf8(name).ok().filter(|text| {
        text.len() <= NAME_BYTES_MAX && text.bytes().all(|byte| (b'!'..=b'~').contains(&byte))
    });
    let refused = || Refusal::text("ERR Client names cannot contain spaces, newlines or special characters.");
    text.map(str::to_owned).ok_or_else(refused)
}
