//! Far memory of a program: what was asked for, and the supervisor while the program runs.

use super::back_end::{BackEnd, back_end, same_fate, understand};
use super::program::check_startable;
use super::temporary::TemporaryFolder;
use crate::commands::trace;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::Output;
use crate::size::{Size, human};
use hinterland_far::control::{About, Control, LOCAL_BYTES_MIN, Understand, runs};
use hinterland_far::program;
use hinterland_far::store::Stores;
use hinterland_far::{Budget, Options, Recorder, Report, Service, Supervisor, Watch, Written, check_rights};
use hinterland_farplan::live::{Prices, Tuner};
use hinterland_farplan::replay::Unit;
use hinterland_farplan::share;
use hinterland_farplan::stride::FILL_BYTES_MAX;
use hinterland_farplan::width::{WIDTH, WIDTH_MAX};
use hinterland_os::idle::Wakefulness;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;

/// The variable by which the library finds the supervisor.
pub const SOCKET_VARIABLE: &str = "HINTERLAND_FAR_SOCKET";
/// The variable by which the library knows the process that the run started.
pub const FIRST_VARIABLE: &str = "HINTERLAND_FAR_FIRST";
/// The variables by which the threads that read back ends, or those that write to them, are others than the width says; 0 turns them off.
const READERS_VARIABLE: &str = "HINTERLAND_FAR_READERS";
const WRITERS_VARIABLE: &str = "HINTERLAND_FAR_WRITERS";
/// The variables that are 0 where faults are not served on the processor of their thread, and where nothing comes back open for writing.
const FOLLOW_VARIABLE: &str = "HINTERLAND_FAR_FOLLOW";
const GUESS_VARIABLE: &str = "HINTERLAND_FAR_GUESS";
/// Whether the next fault is looked for before the serving thread sleeps; 0 turns that off.
const LOOK_VARIABLE: &str = "HINTERLAND_FAR_LOOK";
/// Whether what comes back soon after it left stays longer; 0 turns that off.
const REFAULTS_VARIABLE: &str = "HINTERLAND_FAR_REFAULTS";
/// Whether small units that follow each other are filled by one call; 0 turns that off.
const TOGETHER_VARIABLE: &str = "HINTERLAND_FAR_TOGETHER";
/// Whether as much of a unit moves together as its place uses together; 0 turns that off.
const FIT_VARIABLE: &str = "HINTERLAND_FAR_FIT";
/// Whether what lies along the steps of a program is filled ahead; 0 turns that off.
const TRENDS_VARIABLE: &str = "HINTERLAND_FAR_TRENDS";
/// Whether memory that has come to rest gets huge pages again; 0 turns that off.
const HUGE_VARIABLE: &str = "HINTERLAND_FAR_HUGE";
/// Whether other runs of this host are given way to; 0 turns that off.
const SHARES_VARIABLE: &str = "HINTERLAND_FAR_SHARES";
/// What a program that cannot be started ends with, from the library's own to that of a shell for one that is not there.
const CODE_NOT_STARTED: i32 = 125;
const CODE_NOT_FOUND: i32 = 127;
/// The signal of a system call that a filter forbids.
const SIGSYS: i32 = 31;
/// Longest name of a run.
const NAME_CHARACTERS_MAX: usize = 80;
/// Bytes of a unit unless another is asked for. Six programs of `bench far-apps` waited less for 16 KiB than for 4 or 64.
pub const UNIT_BYTES: u64 = 16 << 10;
/// The same where a back end takes tens of microseconds however little is asked for: a disk, or another rack.
pub const SLOW_UNIT_BYTES: u64 = 64 << 10;

/// What was asked for.
#[derive(clap::Args, Debug)]
pub struct Choice {
    /// Most memory that the program may have on this host: a size, or hundredths of what it uses, as in 50%
    #[arg(long, value_name = "SIZE", value_parser = budget)]
    local: Option<Budget>,
    /// Where the rest is kept, with commas between: lz4 or zstd (compressed memory of this host, while it has some left), ssd:PATH, pool (memory of the pool in this
    /// rack) or pool:RACK (in another one), each also with @SIZE behind it
    #[arg(long, value_name = "LIST", default_value = "lz4", requires = "local", value_delimiter = ',', value_parser = back_end)]
    far: Vec<BackEnd>,
    /// In how many of them each byte is kept
    #[arg(long, value_name = "N", default_value_t = 1, requires = "local", value_parser = clap::value_parser!(u8).range(1..=4))]
    copies: u8,
    /// Bytes that move at once, a power of two from 4K to 2M [default: 16K, of which as much moves as is used together; with a disk or another rack 64K]
    #[arg(long, value_name = "SIZE", requires = "local", value_parser = unit)]
    far_unit: Option<Size>,
    /// Threads that read back ends at once, and as many that write to them, 1 to 16: more for a disk or another rack, which answers several in the time of one
    #[arg(long, value_name = "N", default_value_t = WIDTH, requires = "local", value_parser = width)]
    far_width: usize,
    /// Do not fetch ahead of a program that reads in order
    #[arg(long, requires = "local")]
    no_ahead: bool,
    /// Keep idle processors of this machine from sleep while faults come quickly: they are served sooner, and in a virtual machine the host's
    /// processors are busy meanwhile
    #[arg(long, requires = "local")]
    awake: bool,
    /// What `hinterland far list` and `hinterland switch` call the program [default: as its file is called]
    #[arg(long, value_name = "NAME", requires = "local", value_parser = listed_name)]
    name: Option<String>,
    /// Write a page with pictures of the run at its end: pages, faults, waits and back ends over time
    #[arg(long, value_name = "FILE.html", requires = "local")]
    report: Option<PathBuf>,
    /// Its share of disks, links and processors while other runs on this host want them, too: twice the number, twice as much
    #[arg(long, value_name = "N", default_value_t = share::SHARE, requires = "local", value_parser = clap::value_parser!(u64).range(1..=share::SHARE_MAX))]
    share: u64,
    /// Record which of its far memory the program touches when, for `hinterland advise FILE`; units are then of one size
    #[arg(long, value_name = "FILE", requires = "local", conflicts_with = "tune")]
    record: Option<PathBuf>,
    /// Learn while the program runs how far to fetch ahead
    #[arg(long, requires = "local", conflicts_with = "no_ahead")]
    tune: bool,
}

/// A recording, and where its page goes.
struct Recorded {
    recorder: Recorder,
    path: PathBuf,
    file: File,
}

/// The supervisor of a program.
pub struct Supervised {
    control: Option<Control>,
    recorded: Option<Recorded>,
    traced: Option<(Written, PathBuf)>,
    supervisor: Supervisor,
    socket: PathBuf,
    _folder: TemporaryFolder,
}

/// Opens back ends for content of at most `unit_bytes` bytes each; those in a pool ask the node at `node`.
///
/// # Errors
/// [`Failure`] for one that cannot be had or is named twice, and for more copies than there are back ends.
pub fn open_back_ends(
    far: &[BackEnd],
    copies: u8,
    unit_bytes: u64,
    node: &Path,
) -> Result<Arc<Stores>, Failure> {
    if usize::from(copies) > far.len() {
        return Err(Failure::new(
            format!("{copies} copies need as many back ends, and --far names {}", far.len()),
            "name more with --far, or ask for fewer with --copies",
        ));
    }
    let stores = Arc::new(Stores::new(Vec::new(), usize::from(copies)));
    for (index, back_end) in far.iter().enumerate() {
        if far[..index].iter().any(|other| other.name() == back_end.name()) {
            return Err(Failure::new(
                format!("--far names {} twice", back_end.name()),
                "name each once, and give it more room with @SIZE behind it",
            ));
        }
        stores.add(back_end.open(unit_bytes, node)?).map_err(|error| refused(&error))?;
    }
    Ok(stores)
}

impl Choice {
    /// Whether far memory was asked for.
    pub const fn is_wanted(&self) -> bool {
        self.local.is_some()
    }

    /// Starts the supervisor, if far memory was asked for.
    ///
    /// # Errors
    /// [`Failure`] for a program that cannot have far memory, and for a back end that cannot be had.
    pub fn start(&self, program: &[OsString], context: &Context) -> Result<Option<Supervised>, Failure> {
        let Some(local) = self.local else { return Ok(None) };
        if let Some(name) = program.first() {
            check(name)?;
            if self.record.is_some() {
                check_startable(name)?;
            }
        }
        if let Some((record, report)) =
            self.record.as_deref().zip(self.report.as_deref()).filter(|(a, b)| is_same(a, b))
        {
            return Err(Failure::usage(
                format!(
                    "--record and --report both name {}, and {} is one file",
                    record.display(),
                    report.display()
                ),
                "give each a file of its own",
            ));
        }
        check_awake(self.awake)?;
        let default = default_unit(&self.far);
        let unit_bytes = self.far_unit.map_or(default.bytes(), |unit| unit.bytes);
        let far: Vec<BackEnd> = self.far.iter().map(BackEnd::sparing).collect();
        let stores = open_back_ends(&far, self.copies, unit_bytes, &context.socket())?;
        warn_of_same_fate(&far, usize::from(self.copies), context);
        let (watch, traced) = self.watch(local, unit_bytes)?;
        let page = self.report.as_deref().map(page).transpose()?;
        let ahead = !self.no_ahead;
        let service = service(self.far_width)?;
        // Who names a unit gets that one; what learns about the windows counts in units.
        let fits = self.far_unit.is_none() && !self.tune && traced.is_none() && default == Unit::Fitted;
        let share = if service.share > 0 { self.share } else { 0 };
        let service = Service { fit: service.fit && fits, share, awake: self.awake, ..service };
        let options = Options { budget: local, unit_bytes, stores, ahead, service, watch };
        let about = self.about(program);
        let mut supervised = Supervised::start_listed(
            options,
            about.clone(),
            Some(understand(unit_bytes, context.socket())),
            &context.output,
        )?;
        if let Some((path, file)) = page {
            let recorder = Recorder::start(&supervised.supervisor, about)?;
            supervised.recorded = Some(Recorded { recorder, path, file });
        }
        supervised.traced = traced;
        Ok(Some(supervised))
    }

    /// What is done with the faults of the run, and where a trace of them goes.
    fn watch(&self, local: Budget, unit_bytes: u64) -> Result<(Watch, Option<(Written, PathBuf)>), Failure> {
        if self.tune {
            let tuner = Tuner::new(unit_bytes, FILL_BYTES_MAX, Prices::default());
            return Ok((Watch::Tune(tuner), None));
        }
        let Some(path) = &self.record else { return Ok((Watch::Nothing, None)) };
        let (recorder, written) = trace::begin(path, local, unit_bytes)?;
        Ok((Watch::Record(recorder), Some((written, path.clone()))))
    }

    fn about(&self, program: &[OsString]) -> About {
        let file = program.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
        about(self.name.clone().unwrap_or_else(|| file.to_string_lossy().into_owned()), program)
    }
}

/// Refuses `--awake` where processors cannot be kept from sleep.
///
/// # Errors
/// [`Failure`] that says why.
pub fn check_awake(is_asked: bool) -> Result<(), Failure> {
    if !is_asked {
        return Ok(());
    }
    Wakefulness::begin().map(drop).map_err(|error| {
        let hint = "run it as root, and in a container with that device, or leave --awake away";
        Failure::new(format!("--awake: {error}"), hint)
    })
}

/// Says which back ends fail together although each byte is to be in several.
pub fn warn_of_same_fate(far: &[BackEnd], copies: usize, context: &Context) {
    // Without a node, nothing is in its rack.
    let own_rack = || context.pool().ok()?.status().ok().map(|status| status.rack);
    if let Some(text) = same_fate(far, copies, own_rack) {
        context.output.warn(text);
    }
}

fn about(name: String, program: &[OsString]) -> About {
    About { name, command: program.iter().map(|word| word.to_string_lossy().into_owned()).collect() }
}

impl Supervised {
    /// Starts a supervisor in a folder of its own.
    ///
    /// # Errors
    /// [`Failure`] when the folder, the socket or a thread cannot be had.
    pub fn start(options: Options) -> Result<Self, Failure> {
        check_rights().map_err(|error| refused(&error))?;
        let folder = TemporaryFolder::make("far")?;
        let socket = folder.path().join("far.sock");
        let supervisor = Supervisor::start(&socket, options).map_err(|error| refused(&error))?;
        Ok(Self { control: None, recorded: None, traced: None, supervisor, socket, _folder: folder })
    }

    fn start_listed(
        options: Options,
        about: About,
        understand: Option<Box<Understand>>,
        output: &Output,
    ) -> Result<Self, Failure> {
        let supervised = Self::start(options)?;
        let control = Control::open(&supervised.supervisor, &runs::folder(), about, understand);
        let control = control.map_err(|error| {
            output.warn(format_args!("the program cannot be listed or changed while it runs: {error}"));
        });
        Ok(Self { control: control.ok(), ..supervised })
    }

    /// A supervisor for a job of a batch, with back ends that are the batch's.
    ///
    /// # Errors
    /// [`Failure`] for a program that cannot have far memory.
    pub fn of_job(
        name: &str,
        program: &[OsString],
        options: Options,
        output: &Output,
    ) -> Result<Self, Failure> {
        if let Some(name) = program.first() {
            check(name)?;
        }
        // Its back ends are those of the whole batch.
        Self::start_listed(options, about(name.to_owned(), program), None, output)
    }

    /// Ends the service without a word.
    pub fn end(self) -> Report {
        drop(self.control);
        self.supervisor.finish()
    }

    /// The path that the program is told.
    pub fn socket(&self) -> OsString {
        self.socket.clone().into_os_string()
    }

    /// Ends the service, and says what it did, and what else the end of the program tells.
    pub fn finish(self, output: &Output, ended: Option<ExitStatus>) -> Report {
        drop(self.control);
        let recorded =
            self.recorded.map(|recorded| (recorded.recorder.finish(), recorded.path, recorded.file));
        let report = self.supervisor.finish();
        if let Some((recording, path, mut file)) = recorded {
            let page = recording.html(&report);
            let written = file.set_len(0).and_then(|()| file.write_all(page.as_bytes()));
            match written {
                Ok(()) => output.say(format_args!("hinterland: the report is in {}", path.display())),
                Err(error) => output.fail(&Failure::file("writing", &path, &error)),
            }
        }
        if let Some((written, path)) = self.traced
            && let Err(failure) = trace::tell(&written, &path, output)
        {
            output.fail(&failure);
        }
        if ended.and_then(|status| status.signal()) == Some(SIGSYS) {
            output.warn(
                "the program was ended for a system call that its own filter (seccomp) forbids: far memory needs sendmsg, recvmsg, socket, connect, ioctl, \
                 madvise, process_vm_readv, sched_yield, rt_sigprocmask and futex (hint: allow them, or run it without --local)",
            );
        }
        if !report.is_loaded {
            // Why nothing was started has been told.
            if ended.is_some_and(|status| !matches!(status.code(), Some(CODE_NOT_STARTED..=CODE_NOT_FOUND))) {
                output.warn(
                    "the library of far memory was not loaded into the program: all of its memory was the kernel's, and beside the budget \
                     (hint: look for words of the loader above)",
                );
            }
            return report;
        }
        tell(&report, output);
        let dumped = ended.is_some_and(|status| status.core_dumped());
        if dumped && report.far_bytes_max > 0 {
            output.say(
                "hinterland: the core dump has zeros in place of what was far \
                 (hint: for a whole one, run with as much --local as the program needs)",
            );
        }
        report
    }
}

/// Opens the file of a page before the program starts, so that one that cannot be written is told then. What is in it stays until the end.
/// A name by which a program can be listed and spoken of in one line.
fn listed_name(text: &str) -> Result<String, String> {
    let fits = (1..=NAME_CHARACTERS_MAX).contains(&text.chars().count());
    if fits && !text.trim().is_empty() && !text.contains(char::is_control) {
        return Ok(text.to_owned());
    }
    Err(format!("a name has 1 to {NAME_CHARACTERS_MAX} characters that can be seen, in one line"))
}

/// Whether two paths lead to one file, which need not be there yet.
fn is_same(a: &Path, b: &Path) -> bool {
    let is_one = |a: Metadata, b: Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    match (a.metadata(), b.metadata()) {
        (Ok(a), Ok(b)) => is_one(a, b),
        _ => std::path::absolute(a).is_ok_and(|a| std::path::absolute(b).is_ok_and(|b| a == b)),
    }
}

fn page(path: &Path) -> Result<(PathBuf, File), Failure> {
    let file = File::options().write(true).create(true).truncate(false).open(path);
    file.map(|file| (path.to_owned(), file)).map_err(|error| Failure::file("writing", path, &error))
}

/// What moves at once over these back ends unless something else is asked for.
pub fn default_unit(far: &[BackEnd]) -> Unit {
    if far.iter().all(BackEnd::is_exact) {
        Unit::Fitted
    } else if far.iter().any(BackEnd::is_slow) {
        Unit::Bytes(SLOW_UNIT_BYTES)
    } else {
        Unit::Bytes(UNIT_BYTES)
    }
}

/// How faults are served with so many threads that read and that write back ends, and as the environment says.
///
/// # Errors
/// [`Failure`] for a variable that is no number of threads.
pub fn service(width: usize) -> Result<Service, Failure> {
    let is_on = |variable| std::env::var_os(variable).is_none_or(|value| value != "0");
    Ok(Service {
        readers: threads(READERS_VARIABLE, width)?,
        writers: threads(WRITERS_VARIABLE, width)?,
        follow: is_on(FOLLOW_VARIABLE),
        look: is_on(LOOK_VARIABLE),
        awake: false,
        guess: is_on(GUESS_VARIABLE),
        refaults: is_on(REFAULTS_VARIABLE),
        together: is_on(TOGETHER_VARIABLE),
        trends: is_on(TRENDS_VARIABLE),
        fit: is_on(FIT_VARIABLE),
        huge: is_on(HUGE_VARIABLE),
        share: if is_on(SHARES_VARIABLE) { share::SHARE } else { 0 },
    })
}

/// Refuses programs that the library cannot be put before, or that would go past it.
///
/// # Errors
/// [`Failure`] that says which kind it is.
pub fn check(name: &OsStr) -> Result<(), Failure> {
    match program::find(name).and_then(|path| program::refusal(&path)) {
        Some(refusal) => {
            Err(Failure::new(format!("{} {}", refusal.path.display(), refusal.text), refusal.hint))
        }
        None => Ok(()),
    }
}

/// How many threads a variable asks for; so many as the width says without it.
fn threads(variable: &str, width: usize) -> Result<usize, Failure> {
    let Some(text) = std::env::var_os(variable) else { return Ok(width) };
    let number = text.to_str().and_then(|text| text.parse().ok()).filter(|number| *number <= WIDTH_MAX);
    number.ok_or_else(|| {
        let text = format!("{variable} is {}, no number of threads", text.display());
        Failure::new(text, format!("0 to {WIDTH_MAX}, or leave it away"))
    })
}

fn tell(report: &Report, output: &Output) {
    // Of one process: what all of them had together of far memory is in the report.
    let peak = hinterland_os::process::children_resident_bytes_max();
    output
        .say(format_args!("hinterland: the largest process had at most {} resident; {report}", human(peak)));
    if report.outside_bytes_max > 0 {
        output.say(format_args!(
            "hinterland: {} of it alone left the budget no room: memory that is shared, locked, mapped from files or asked for in small parts \
             cannot be far (hint: raise --local; Java: another collector than ZGC, as -XX:+UseG1GC)",
            human(report.outside_bytes_max)
        ));
    }
}

pub(super) fn refused(error: &dyn std::error::Error) -> Failure {
    let text = error.to_string();
    match text.split_once(" (hint: ") {
        Some((text, hint)) => Failure::new(text.to_owned(), hint.trim_end_matches(')').to_owned()),
        None => Failure::new(text, "try another back end with --far"),
    }
}

/// A budget as people write it.
pub fn budget(text: &str) -> Result<Budget, String> {
    if let Some(number) = text.strip_suffix('%') {
        return match number.trim().parse() {
            Ok(percent @ 1..=100) => Ok(Budget::Percent(percent)),
            _ => Err(format!("{text} is no share (hint: 1% to 100%)")),
        };
    }
    let size: Size = text.parse().map_err(|error: crate::size::SizeError| error.to_string())?;
    if size.bytes < LOCAL_BYTES_MIN {
        let share = match text.trim().parse::<u8>() {
            Ok(percent @ 1..=100) => format!(", or {percent}% of what the program uses"),
            _ => String::new(),
        };
        return Err(format!("{size} is too little for any program (hint: at least 64M{share})"));
    }
    Ok(Budget::Bytes(size.bytes))
}

/// Bytes that move at once, as people write them.
pub fn unit(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error: crate::size::SizeError| error.to_string())?;
    if (4096..=2 << 20).contains(&size.bytes) && size.bytes.is_power_of_two() {
        Ok(size)
    } else {
        Err("a unit is a power of two from 4K to 2M (hint: without it, what suits the back ends is taken)"
            .to_owned())
    }
}

/// Threads that read back ends, and that write to them, as people write them.
fn width(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(width @ 1..=WIDTH_MAX) => Ok(width),
        _ => Err(format!(
            "{text} is no number of threads (hint: 1 to {WIDTH_MAX}; {WIDTH} is enough for compressed memory, and `hinterland advise` tells what a program \
             gains from more)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_sizes_or_shares() {
        assert!(matches!(budget("2G"), Ok(Budget::Bytes(bytes)) if bytes == 2 << 30));
        assert!(matches!(budget("50%"), Ok(Budget::Percent(50))));
        for bad in ["0%", "101%", "1M", "half", "%"] {
            assert!(budget(bad).unwrap_err().contains("hint:"), "{bad}");
        }
        assert!(budget("50").unwrap_err().contains("(hint: at least 64M, or 50% of what the program uses)"));
        assert!(budget("200").unwrap_err().contains("(hint: at least 64M)"));
    }
}
