//! Commands about the server: what it is, what it can, how it is set.

use super::{Call, Outcome, REDIS_VERSION, Refusal};
use crate::shared::Counters;
use hinterland_proto::control::KvStatus;
use hinterland_resp::command::{self, COMMANDS, Spec};
use hinterland_resp::glob;

/// Sections of `INFO`, in their order.
const SECTIONS: [&str; 6] = ["server", "clients", "memory", "stats", "replication", "keyspace"];

impl Call<'_> {
    pub(super) fn info(&mut self) -> Outcome {
        let mut wanted: Vec<String> =
            self.words.from(1).map(|word| String::from_utf8_lossy(word).to_lowercase()).collect();
        if wanted.is_empty()
            || wanted.iter().any(|name| ["all", "default", "everything"].contains(&name.as_str()))
        {
            wanted = SECTIONS.map(str::to_owned).to_vec();
        }
        let mut text = String::new();
        for section in SECTIONS.iter().filter(|section| wanted.iter().any(|name| name == *section)) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            let mut title = (*section).to_owned();
            title[..1].make_ascii_uppercase();
            text.push_str(&format!("# {title}\r\n"));
            for (name, value) in self.section(section)? {
                text.push_str(&format!("{name}:{value}\r\n"));
            }
        }
        self.replies.text(&text);
        Ok(())
    }

    fn section(&mut self, section: &str) -> Result<Vec<(String, String)>, Refusal> {
        let lines: Vec<(&str, String)> = match section {
            "server" => {
                let shared = &self.context.shared;
                let uptime = shared.since.elapsed().as_secs();
                vec![
                    ("redis_version", REDIS_VERSION.to_owned()),
                    ("server_name", "hinterland".to_owned()),
                    ("hinterland_version", env!("CARGO_PKG_VERSION").to_owned()),
                    ("redis_mode", "standalone".to_owned()),
                    ("os", "Linux".to_owned()),
                    ("arch_bits", "64".to_owned()),
                    ("process_id", std::process::id().to_string()),
                    ("tcp_port", shared.port.to_string()),
                    ("namespace", shared.options.namespace.clone()),
                    ("uptime_in_seconds", uptime.to_string()),
                    ("uptime_in_days", (uptime / 86_400).to_string()),
                ]
            }
            "clients" => {
                let shared = &self.context.shared;
                vec![
                    ("connected_clients", shared.clients().len().to_string()),
                    ("maxclients", shared.options.clients_max.to_string()),
                ]
            }
            "memory" => {
                let store = self.keyspace()?.store();
                let capacity = store.capacity_bytes();
                let stores = store.status().map_err(crate::keyspace::KeyError::from)?;
                let used: u64 = stores.iter().map(|store| store.bytes).sum();
                vec![
                    ("used_memory", used.to_string()),
                    ("maxmemory", capacity.to_string()),
                    ("maxmemory_policy", policy(&stores)),
                    ("buffers_bytes", self.context.shared.buffer_bytes().to_string()),
                ]
            }
            "stats" => {
                let counters = &self.context.shared.counters;
                vec![
                    ("total_connections_received", Counters::read(&counters.connections).to_string()),
                    ("rejected_connections", Counters::read(&counters.rejected).to_string()),
                    ("total_commands_processed", Counters::read(&counters.commands).to_string()),
                    ("keyspace_hits", Counters::read(&counters.hits).to_string()),
                    ("keyspace_misses", Counters::read(&counters.misses).to_string()),
                ]
            }
            "replication" => vec![("role", "master".to_owned()), ("connected_slaves", "0".to_owned())],
            _ => return self.databases(),
        };
        Ok(lines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    fn databases(&mut self) -> Result<Vec<(String, String)>, Refusal> {
        let mut lines = Vec::new();
        for database in self.databases_in_use()? {
            let keys = self.of_database(database, |keyspace| Ok(keyspace.store().count()?))?;
            if keys > 0 {
                // How many of them end is nowhere counted.
                lines.push((format!("db{database}"), format!("keys={keys},expires=0,avg_ttl=0")));
            }
        }
        Ok(lines)
    }

    pub(super) fn config(&mut self) -> Outcome {
        match self.subcommand().as_slice() {
            b"GET" => {}
            b"RESETSTAT" => return self.ok(),
            b"SET" | b"REWRITE" => {
                return Err(Refusal::text(
                    "ERR the server is configured by the command that starts it (hint: hinterland resp --help)",
                ));
            }
            _ => return self.help(&["CONFIG <subcommand>.", "GET <pattern>, RESETSTAT"]),
        }
        let store = self.keyspace()?.store();
        let capacity = store.capacity_bytes();
        let stores = store.status().map_err(crate::keyspace::KeyError::from)?;
        let options = &self.context.shared.options;
        let all = [
            ("appendonly", "no".to_owned()),
            ("databases", options.databases.to_string()),
            ("maxclients", options.clients_max.to_string()),
            ("maxmemory", capacity.to_string()),
            ("maxmemory-policy", policy(&stores)),
            ("port", self.context.shared.port.to_string()),
            ("proto-max-bulk-len", crate::head::VALUE_BYTES_MAX.to_string()),
            ("save", String::new()),
            ("timeout", "0".to_owned()),
        ];
        let patterns: Vec<Vec<u8>> = self.words.from(2).map(<[u8]>::to_ascii_lowercase).collect();
        let fits = |name: &str| patterns.iter().any(|pattern| glob::fits(pattern, name.as_bytes()));
        let shown: Vec<_> = all.iter().filter(|(name, _)| fits(name)).collect();
        self.replies.map(shown.len());
        for (name, value) in shown {
            self.replies.bulk(name.as_bytes());
            self.replies.bulk(value.as_bytes());
        }
        Ok(())
    }

    pub(super) fn command(&mut self) -> Outcome {
        let named: Vec<Option<&'static Spec>> = self.words.from(2).map(command::find).collect();
        match self.subcommand().as_slice() {
            b"" => {
                self.replies.array(COMMANDS.len());
                COMMANDS.iter().for_each(|spec| self.describe(spec));
            }
            b"COUNT" => self.replies.integer(COMMANDS.len() as i64),
            b"LIST" => {
                let listed = self.listed()?;
                self.replies.array(listed.len());
                listed.into_iter().for_each(|spec| self.replies.bulk(spec.name.as_bytes()));
            }
            b"INFO" => {
                let named = if named.is_empty() { COMMANDS.iter().map(Some).collect() } else { named };
                self.replies.array(named.len());
                for spec in named {
                    match spec {
                        Some(spec) => self.describe(spec),
                        None => self.replies.nil(),
                    }
                }
            }
            b"DOCS" => {
                let named: Vec<&Spec> = if named.is_empty() {
                    COMMANDS.iter().collect()
                } else {
                    named.into_iter().flatten().collect()
                };
                self.replies.map(named.len());
                named.into_iter().for_each(|spec| self.document(spec));
            }
            _ => return self.help(&["COMMAND <subcommand>.", "COUNT, DOCS, INFO, LIST"]),
        }
        Ok(())
    }

    /// What `COMMAND LIST` names: all, or those of a pattern or a group. No module brings any.
    fn listed(&self) -> Result<Vec<&'static Spec>, Refusal> {
        let is = |index: usize, name: &str| self.words.get(index).eq_ignore_ascii_case(name.as_bytes());
        let sought = self.words.get(4).to_ascii_lowercase();
        let fits: &dyn Fn(&Spec) -> bool = match self.words.len() {
            2 => &|_| true,
            5 if is(2, "FILTERBY") && is(3, "PATTERN") => &|spec| glob::fits(&sought, spec.name.as_bytes()),
            5 if is(2, "FILTERBY") && is(3, "ACLCAT") => &|spec| spec.group.as_bytes() == sought,
            5 if is(2, "FILTERBY") && is(3, "MODULE") => &|_| false,
            _ => return Err(Refusal::syntax()),
        };
        Ok(COMMANDS.iter().filter(|spec| fits(spec)).collect())
    }

    fn describe(&mut self, spec: &Spec) {
        self.replies.array(10);
        self.replies.bulk(spec.name.as_bytes());
        self.replies.integer(spec.arity);
        let flags: Vec<&str> = spec.flags.split(',').collect();
        self.replies.set(flags.len());
        flags.iter().for_each(|flag| self.replies.simple(flag));
        let (first, last, step) = spec.keys;
        [first, last, step].into_iter().for_each(|number| self.replies.integer(number));
        self.replies.set(1);
        self.replies.simple(&format!("@{}", spec.group));
        (0..3).for_each(|_| self.replies.array(0));
    }

    fn document(&mut self, spec: &Spec) {
        self.replies.bulk(spec.name.as_bytes());
        self.replies.map(4);
        let lines = [
            ("summary", spec.summary),
            ("since", spec.since),
            ("group", spec.group),
            ("complexity", "O(1) for a key"),
        ];
        for (name, value) in lines {
            self.replies.bulk(name.as_bytes());
            self.replies.bulk(value.as_bytes());
        }
    }

    pub(super) fn role(&mut self) -> Outcome {
        self.replies.array(3);
        self.replies.bulk(b"master");
        self.replies.integer(0);
        self.replies.array(0);
        Ok(())
    }

    pub(super) fn time(&mut self) -> Outcome {
        let now_ms = self.now_ms();
        self.replies.array(2);
        self.replies.bulk((now_ms / 1000).to_string().as_bytes());
        self.replies.bulk((now_ms % 1000 * 1000).to_string().as_bytes());
        Ok(())
    }
}

/// What leaves when the memory is full, in the words of Redis: any key, in the order that `--eviction` of the node names. It is
/// the same for all stores of a node.
fn policy(stores: &[KvStatus]) -> String {
    stores.first().map_or_else(String::new, |store| format!("allkeys-{}", store.eviction))
}
