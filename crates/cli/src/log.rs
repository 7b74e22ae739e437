//! What the libraries report, as words on standard error.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The variable that chooses how much is reported: `error`, `warn`, `info`, `debug` or `trace`.
const VARIABLE: &str = "HINTERLAND_LOG";

/// Reports events of a level and above; spans are not shown.
struct Words {
    most: Level,
}

/// Starts reporting, from warnings up unless `HINTERLAND_LOG` says otherwise.
pub fn install() {
    let most = std::env::var(VARIABLE).ok().and_then(|word| word.parse().ok()).unwrap_or(Level::WARN);
    // It fails only if something reports already, which is as good.
    let _ = tracing::subscriber::set_global_default(Words { most });
}

impl Subscriber for Words {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.most
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let line = line(event);
        // Nothing is left to tell people that they cannot be told.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn line(event: &Event<'_>) -> String {
    let level = match *event.metadata().level() {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    };
    let mut fields = Fields::default();
    event.record(&mut fields);
    format!("{level}: {}{}", fields.message, fields.others)
}

/// The message of an event, and its other fields as ` name=value`.
#[derive(Default)]
struct Fields {
    message: String,
    others: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.others, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value}"),
            name => write!(self.others, " {name}={value}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    struct Keep(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Keep {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            self.0.lock().unwrap().push(line(event));
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn an_event_is_a_line_with_its_fields_behind() {
        let kept = Arc::new(Mutex::new(Vec::new()));
        tracing::subscriber::with_default(Keep(kept.clone()), || {
            tracing::warn!(bytes = 5, name = "a", "short {}", "read");
        });
        assert_eq!(*kept.lock().unwrap(), ["warning: short read bytes=5 name=a"]);
    }
}
