//! The example's command: makes a table in a pool, and serves it to Redis clients.

use clap::{Parser, Subcommand};
use hinterland_pool::{Pool, PoolError};
use hinterland_table::drive::{self, OfRedis, OfTable};
use hinterland_table::faults::lines;
use hinterland_table::values::{PARTS_MAX, VALUE_BYTES_MIN, Values};
use hinterland_table::workload::{Operations, Workload};
use hinterland_table::{FaultedMemory, PoolMemory, Table, server};
use hinterland_types::{GlobalAddress, ObjectName, RackName};
use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

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
        /// Lay its memory over all racks
        #[arg(long, conflicts_with = "rack")]
        spread: bool,
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
    /// Runs a workload of YCSB and says how many operations were done: {"operations":N,"seconds":S}
    Drive(Drive),
    /// Drives a table in memory that it shares by page faults with another such program, to compare with: no pool is used
    Faults(Faults),
}

#[derive(clap::Args)]
struct Faults {
    /// Where to wait for the other program; the port is said in the first line
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "connect", conflicts_with = "connect")]
    listen: Option<String>,
    /// Where the other program waits
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// The table's memory in MiB
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    mebibytes: u64,
    /// How much of the memory whose home is the other program may be here, in MiB
    #[arg(long, default_value_t = 64, value_name = "MIB")]
    cached: u64,
    #[command(flatten)]
    records: Records,
}

#[derive(clap::Args)]
struct Records {
    /// Records
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    records: u64,
    /// Bytes of a value, 16 or more
    #[arg(long, default_value_t = 64, value_name = "BYTES", value_parser = value_bytes)]
    value_bytes: usize,
}

#[derive(clap::Args)]
struct Drive {
    /// The table's name in the pool
    #[arg(value_parser = ObjectName::from_str, required_unless_present = "redis", conflicts_with = "redis")]
    name: Option<ObjectName>,
    /// Servers of Redis instead of a table
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    redis: Vec<String>,
    /// Which workload; without one, the records are loaded
    #[arg(long, value_enum)]
    workload: Option<Workload>,
    #[command(flatten)]
    records: Records,
    /// All records are as popular, instead of zipfian with 0.99
    #[arg(long)]
    uniform: bool,
    /// How long
    #[arg(long, default_value = "3", value_name = "SECONDS", value_parser = seconds)]
    seconds: Duration,
    /// Which of how many drivers this is, such as 0/2
    #[arg(long, default_value = "0/1", value_name = "PART/PARTS", value_parser = part)]
    part: (u64, u64),
    /// Do not remember where keys were found
    #[arg(long)]
    forgetful: bool,
    /// Ask the node at every access, and remember nothing: what the techniques of the pool are compared with
    #[arg(long)]
    plain: bool,
}

/// Reads `0.5`.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "a number of seconds, such as 0.5".to_owned())
}

/// Reads the bytes of a value.
fn value_bytes(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|&bytes| bytes >= VALUE_BYTES_MIN);
    bytes.ok_or_else(|| format!("a number of bytes, {VALUE_BYTES_MIN} or more"))
}

/// Reads `0/2`.
fn part(text: &str) -> Result<(u64, u64), String> {
    let numbers =
        text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    numbers
        .filter(|&(part, parts)| part < parts && parts <= PARTS_MAX)
        .ok_or_else(|| format!("two numbers of at most {PARTS_MAX}, the first one smaller, such as 0/2"))
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
    match &arguments.command {
        Command::Drive(drive) => return run_drive(arguments, drive),
        Command::Faults(faults) => return run_faults(faults),
        Command::Create { .. } | Command::Serve { .. } => {}
    }
    let pool = Pool::connect(arguments.socket.as_deref())?;
    match &arguments.command {
        Command::Drive(_) | Command::Faults(_) => {}
        Command::Create { name, mebibytes, rack, spread } => {
            let bytes = mebibytes << 20;
            let region = if *spread {
                pool.create_spread(name, bytes)?
            } else {
                pool.create_region(name, bytes, rack.clone())?
            };
            Table::create(PoolMemory::new(pool.clone(), address(region.address)?), bytes)?;
            println!("{name}: {mebibytes} MiB");
        }
        Command::Serve { name, listen, forgetful } => {
            let region = pool.open_object(name)?;
            let memory = PoolMemory::new(pool.clone(), address(region.info().address)?);
            let table = Arc::new(Table::open(memory, !forgetful)?);
            let listener = TcpListener::bind(listen)?;
            println!("{}", listener.local_addr()?);
            server::serve(&listener, &table);
        }
    }
    Ok(())
}

fn run_drive(arguments: &Arguments, plan: &Drive) -> Result<(), Box<dyn Error>> {
    let Some(name) = &plan.name else {
        return drive_records(&mut OfRedis::connect(&plan.redis)?, plan);
    };
    let pool = Pool::connect(arguments.socket.as_deref())?;
    let region = pool.open_object(name)?;
    let by = if plan.plain { pool.asking_always() } else { pool.clone() };
    let memory = PoolMemory::new(by, address(region.info().address)?);
    let table = Table::open(memory, !plan.forgetful && !plan.plain)?;
    drive_records(&mut OfTable(&table), plan)
}

fn drive_records(on: &mut impl drive::Records, plan: &Drive) -> Result<(), Box<dyn Error>> {
    let Records { records, value_bytes } = plan.records;
    let mut values = Values::new(value_bytes, plan.part);
    let Some(workload) = plan.workload else {
        return Ok(drive::load(on, records, &mut values)?);
    };
    let mut operations = Operations::new(workload, records, plan.uniform, plan.part);
    let done = drive::drive(on, &mut operations, &mut values, plan.seconds)?;
    println!("{{\"operations\":{},\"seconds\":{:.6}}}", done.operations, done.taken.as_secs_f64());
    Ok(())
}

fn run_faults(plan: &Faults) -> Result<(), Box<dyn Error>> {
    let (peer, part) = match (&plan.listen, &plan.connect) {
        (Some(listen), _) => {
            let listener = TcpListener::bind(listen)?;
            println!("{}", listener.local_addr()?);
            (listener.accept()?.0, 0)
        }
        (None, connect) => (TcpStream::connect(connect.as_deref().unwrap_or_default())?, 1),
    };
    let Records { records, value_bytes } = plan.records;
    let bytes = plan.mebibytes << 20;
    let memory = FaultedMemory::share(peer, part, bytes, plan.cached << 20)?;
    let plan = lines::Plan { bytes, records, value_bytes, part: (part.into(), 2) };
    Ok(lines::answer(&memory, &plan, std::io::stdin().lock(), &mut std::io::stdout())?)
}

fn address(address: Option<GlobalAddress>) -> Result<GlobalAddress, PoolError> {
    const EINVAL: i32 = 22;
    address.ok_or_else(|| PoolError::Refused { code: EINVAL, text: "it has no address yet".to_owned() })
}
