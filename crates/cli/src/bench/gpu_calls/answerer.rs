//! The process at the other side of `gpu-calls`' bare channels: it takes frames, and answers those that ask for it.

use super::link::{broken, put};
use crate::bench::report::Row;
use crate::bench::{Bench, Setting};
use crate::failure::Failure;
use hinterland_channel::{Address, Channel, ChannelError, ChannelOptions, Listener};
use hinterland_proto::{Features, PeerLimits, PoolId, ServerIdentity};
use hinterland_types::NodeId;
use std::io::{BufRead, Write};

/// It is started as this bench, which no list shows.
pub const NAME: &str = "gpu-calls-answerer";

/// The process. `listen ADDRESS` has it take one client, and answers with the address.
pub struct Answerer;

impl Bench for Answerer {
    fn name(&self) -> &'static str {
        NAME
    }

    fn subject(&self) -> &'static str {
        "what `gpu-calls` talks to without CUDA"
    }

    fn run(&self, _: &Setting) -> Result<Vec<Row>, Failure> {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match line.strip_prefix("listen ").map(listen) {
                Some(Ok(address)) => println!("{address}"),
                Some(Err(failure)) => println!("error {}", failure.text),
                None => println!("error {line:?} is no question"),
            }
            if std::io::stdout().flush().is_err() {
                break;
            }
        }
        Err(Failure { silent: true, ..Failure::new("nobody asks any more", "") })
    }
}

/// Listens for one client, which a thread then serves.
fn listen(address: &str) -> Result<Address, Failure> {
    let address: Address = address.parse().map_err(broken)?;
    let identity = ServerIdentity {
        node: NodeId(0),
        pool: PoolId::ANY,
        key: None,
        features: Features(0),
        limits: PeerLimits { body_bytes_max: 0, runs_max: 1, streams_max: 1 },
    };
    let listener = Listener::bind(&address, identity, ChannelOptions::default()).map_err(broken)?;
    let actual = listener.address();
    std::thread::spawn(move || {
        let served = (|| loop {
            if let Some(caller) = listener.accept(None)? {
                return answer(caller.admit()?.0);
            }
        })();
        if let Err(error) = served
            && !matches!(error, ChannelError::Closed)
        {
            eprintln!("{NAME}: {error}");
        }
    });
    Ok(actual)
}

/// Takes frames until the client goes. The word of a frame says how many bytes it wants back, 0 for no answer.
fn answer(channel: Channel) -> Result<(), ChannelError> {
    let (mut sender, mut receiver) = channel.split()?;
    let bytes = vec![2; sender.body_max()];
    loop {
        while let Some(mut frame) = receiver.next()? {
            // What a node takes out of the ring, too.
            let (wanted, _) = (frame.word() as usize, frame.bytes().len());
            drop(frame);
            if wanted > 0 {
                let body = bytes
                    .get(..wanted)
                    .ok_or(ChannelError::TooLong { bytes: wanted, bytes_max: bytes.len() })?;
                put(&mut sender, 0, body)?;
                sender.flush()?;
            }
        }
        receiver.wait(None)?;
    }
}
