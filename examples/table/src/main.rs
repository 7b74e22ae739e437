//! The example's command: makes a table in a pool, and serves it to Redis clients.

use clap::{Parser, Subcommand};
use hinterland_pool::{Pool, PoolError};
use hinterland_table::{PoolMemory, Table, server};
use hinterland_types::{GlobalAddress, ObjectName, RackName};
use std::error::Error;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

/// A hash table in a pool's memory: every rack reads and writes it without a server for it.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The node's socket [default: as `hinterland` has it]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Makes an empty table
    Create {
        /// Its name in the pool
        #[arg(value_parser = ObjectName::from_str)]
        name: ObjectName,
        /// Its memory in MiB: about twice what keys and values have
        #[arg(long, default_value_t = 64, value_name = "MIB")]
        mebibytes: u64,
        /// The rack whose memory it lies in [default: by the pool's policy]
        #[arg(long, value_name = "RACK", value_parser = RackName::from_str)]
        rack: Option<RackName>,
    },
    /// Serves a table to Redis clients until it is ended: GET, SET, MGET, DEL, EXISTS
    Serve {
        /// Its name in the pool
        #[arg(value_parser = ObjectName::from_str)]
        name: ObjectName,
        /// Where to listen
        #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
        listen: String,
        /// Do not remember where keys were found
        #[arg(long)]
        forgetful: bool,
    },
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let pool = Pool::connect(arguments.socket.as_deref())?;
    match &arguments.command {
        Command::Create { name, mebibytes, rack } => {
            let bytes = mebibytes << 20;
            let region = pool.create_region(name, bytes, rack.clone())?;
            Table::create(PoolMemory::new(pool.clone(), address(region.address)?), bytes)?;
            println!("{name}: {mebibytes} MiB");
        }
        Command::Serve { name, listen, forgetful } => {
            let region = pool.open_object(name)?;
            let memory = PoolMemory::new(pool.clone(), address(region.info().address)?);
            let table = Arc::new(Table::open(memory, !forgetful)?);
            let listener = TcpListener::bind(listen)?;
            println!("{}", listener.local_addr()?);
            server::serve(&listener, &table)?;
        }
    }
    Ok(())
}

fn address(address: Option<GlobalAddress>) -> Result<GlobalAddress, PoolError> {
    const EINVAL: i32 = 22;
    address.ok_or_else(|| PoolError::Refused { code: EINVAL, text: "it has no address yet".to_owned() })
}
