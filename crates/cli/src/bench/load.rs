//! `load`: how long a second process takes to map a model that the host already holds and to make its first token.

use super::case::Case;
use super::content::name;
use super::ground::{BenchNode, Ground, NodePlan};
use super::report::{Better, Row};
use super::rounds::Samples;
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_pool::PutOptions;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Maps a model and makes a token.
const DRIVER: &str = include_str!("../../../../bench/load/first_token.py");
const OBJECT: &str = "bench/small.gguf";
/// Bytes for the model in either node, beside the model.
const SLACK_BYTES: u64 = 64 << 20;

/// The bench.
pub struct Load;

impl Bench for Load {
    fn name(&self) -> &'static str {
        "load"
    }

    fn subject(&self) -> &'static str {
        "the first token of a second process on the host, its model cached from another rack"
    }

    fn switches(&self) -> &'static [&'static str] {
        &["huge-pages", "layout"]
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let prepared = super::prepared::folder()?;
        let python = super::prepared::file(&prepared.join("python"))?.join("bin/python");
        let model = super::prepared::file(&prepared.join("small.gguf"))?;
        let bytes =
            std::fs::metadata(&model).map_err(|error| Failure::file("reading", &model, &error))?.len();
        let ground = Ground::new(setting, 2 * bytes + 2 * SLACK_BYTES)?;
        let plan =
            NodePlan { capacity_bytes: SLACK_BYTES, cache_bytes: bytes + SLACK_BYTES, ..NodePlan::default() };
        let home = ground.node(NodePlan { name: "home", capacity_bytes: bytes + SLACK_BYTES, ..plan })?;
        let near = ground.node(NodePlan { name: "near", join: Some(&home.address), ..plan })?;
        let mut file =
            std::fs::File::open(&model).map_err(|error| Failure::file("reading", &model, &error))?;
        let options = PutOptions { bytes: Some(bytes), ..PutOptions::default() };
        home.pool()?.put(&mut file, &name(OBJECT)?, &options, &mut |_| {})?;
        let driver = ground.folder().join("first_token.py");
        std::fs::write(&driver, DRIVER).map_err(|error| Failure::file("writing", &driver, &error))?;
        let scene = Scene {
            ground: &ground,
            home: &home,
            near: &near,
            python,
            driver,
            model,
            network: RefCell::default(),
        };
        (setting.say)("load: the first process");
        let mut first = scene.start(true)?;
        first.ask("go")?;
        (setting.say)("load: second processes");
        let rows = vec![
            scene.row("second-process", false, setting),
            scene.row("second-process-start", true, setting),
        ];
        Ok(rows.into_iter().chain([scene.moved()]).collect())
    }
}

struct Scene<'bench> {
    ground: &'bench Ground,
    home: &'bench BenchNode,
    near: &'bench BenchNode,
    python: PathBuf,
    driver: PathBuf,
    model: PathBuf,
    network: RefCell<Samples>,
}

impl Scene<'_> {
    fn start(&self, from_pool: bool) -> Result<Worker, Failure> {
        let (mut command, model) = if from_pool {
            let mut command = self.ground.run_on(self.near, &[]);
            command.arg(&self.python);
            (command, self.ground.mount().join(OBJECT))
        } else {
            (Command::new(&self.python), self.model.clone())
        };
        command.arg(&self.driver).arg(Path::new(&model));
        Worker::start("llama.cpp", command)
    }

    /// Milliseconds from the mapping to the token, or from the start of the process.
    fn time(&self, from_pool: bool, from_start: bool) -> Result<f64, Failure> {
        // What the home sends to whomever: also the program's own mount reads from it.
        let sent = || Ok::<_, Failure>(self.home.pool()?.status()?.counters.network_sent_bytes);
        let before = sent()?;
        let begin = Instant::now();
        let mut worker = self.start(from_pool)?;
        let inside = worker.figure("go")? * 1e3;
        let whole = begin.elapsed().as_secs_f64() * 1e3;
        if from_pool {
            self.network.borrow_mut().add((sent()? - before) as f64);
        }
        Ok(if from_start { whole } else { inside })
    }

    fn row(&self, case: &str, from_start: bool, setting: &Setting) -> Row {
        Case::new(case, "ms", Better::Lower, || self.time(true, from_start))
            .limit("mmap of the plain file in the page cache", || self.time(false, from_start))
            .peer("mmap of the plain file from disk", || {
                super::content::forget_pages(&self.model)?;
                self.time(false, from_start)
            })
            .measure(setting.rounds)
    }

    fn moved(&self) -> Row {
        let samples = self.network.borrow().clone();
        super::case::row("second-process-network", "bytes", Better::Lower, &[samples], [None, None], None)
    }
}
