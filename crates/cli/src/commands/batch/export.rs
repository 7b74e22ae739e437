//! The plan of a batch as files of a cluster's scheduler.

use super::advice::Setting;
use super::jobs::{Host, Job};
use crate::failure::Failure;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// Memory of a run without a program; a third of it is usual.
const RUN_BYTES: u64 = 32 << 20;
/// And a thirty-second of the program's; a half of that was seen with units of 64 KiB.
const RUN_PART: u64 = 32;

/// Schedulers that files can be written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scheduler {
    /// One script for `sbatch` a job
    Slurm,
    /// One manifest for `kubectl apply -f` a job
    Kubernetes,
}

/// Writes a file for each job into a folder.
///
/// # Errors
/// [`Failure`] for a file that cannot be written, and for Kubernetes without an image.
pub fn write(
    scheduler: Scheduler,
    folder: &Path,
    host: &Host,
    plan: &[(&Job, Setting)],
    awake: bool,
) -> Result<(), Failure> {
    let mut files = Vec::with_capacity(plan.len());
    for (job, setting) in plan {
        let (end, text) = match scheduler {
            Scheduler::Slurm => ("sbatch", slurm(job, setting, awake)),
            Scheduler::Kubernetes => {
                let image = host.image.as_deref().ok_or_else(|| {
                    Failure::new(
                        "Kubernetes runs images, and the batch names none",
                        "write image = \"REGISTRY/NAME:TAG\" with hinterland in it below [host]",
                    )
                })?;
                ("json", format!("{:#}\n", kubernetes(image, job, setting, awake)))
            }
        };
        files.push((folder.join(format!("{}.{end}", job.name)), text));
    }
    // A batch that is refused leaves no folder.
    std::fs::create_dir_all(folder).map_err(|error| Failure::file("making", folder, &error))?;
    for (path, text) in files {
        std::fs::write(&path, text).map_err(|error| Failure::file("writing", &path, &error))?;
    }
    Ok(())
}

/// What a job needs of a scheduler that ends who takes more: beside the program and what compressed back ends keep, `hinterland run` itself, with
/// its tables, and the page tables of both.
fn limit_bytes(job: &Job, setting: &Setting) -> u64 {
    setting.demand.memory_bytes + RUN_BYTES + job.memory.0 / RUN_PART
}

/// The words of the command that runs a job.
fn command(job: &Job, setting: &Setting, awake: bool) -> Vec<String> {
    let mut words: Vec<String> = ["hinterland", "run", "--local"].map(str::to_owned).to_vec();
    words.push(setting.local_bytes.to_string());
    words.extend(["--far".to_owned(), setting.far.join(",")]);
    words.extend(["--far-unit".to_owned(), setting.unit_bytes.to_string()]);
    if !setting.ahead {
        words.push("--no-ahead".to_owned());
    }
    if let Some(share) = job.share {
        words.extend(["--share".to_owned(), share.to_string()]);
    }
    words.extend(awake.then(|| "--awake".to_owned()));
    words.extend(["--name".to_owned(), job.name.clone(), "--".to_owned()]);
    words.extend(job.program.iter().cloned());
    words
}

fn slurm(job: &Job, setting: &Setting, awake: bool) -> String {
    let mut text = format!("#!/bin/sh\n#SBATCH --job-name={}\n", job.name);
    // Writing to a string does not fail.
    let _ = writeln!(text, "#SBATCH --mem={}M", limit_bytes(job, setting).div_ceil(1 << 20));
    if let Some(deadline) = job.deadline {
        let _ = writeln!(text, "#SBATCH --time={}", (deadline / 60.0).ceil().max(1.0) as u64);
    }
    let words: Vec<String> = command(job, setting, awake).iter().map(|word| quoted(word)).collect();
    let _ = writeln!(text, "# {}\nexec {}", setting.why, words.join(" "));
    text
}

/// A word as a shell takes it for one.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:,=@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn kubernetes(image: &str, job: &Job, setting: &Setting, awake: bool) -> Value {
    let memory = limit_bytes(job, setting).to_string();
    let mut spec = json!({
        "backoffLimit": 0,
        "template": { "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": job.name,
                "image": image,
                "command": command(job, setting, awake),
                "resources": { "requests": { "memory": memory }, "limits": { "memory": memory } },
                "securityContext": { "runAsUser": 0, "capabilities": { "add": ["SYS_PTRACE"] } },
            }],
        } },
    });
    if let Some(deadline) = job.deadline {
        spec["activeDeadlineSeconds"] = json!(deadline.ceil() as u64);
    }
    json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": job.name }, "spec": spec })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_farplan::dispatch::Demand;

    #[test]
    fn a_job_on_a_disk_is_not_ended_for_the_memory_of_its_run() {
        let local_bytes = 142 << 20;
        let far = vec!["ssd:far@1G".to_owned()];
        let demand = Demand { back_ends: far.clone(), memory_bytes: local_bytes };
        let setting =
            Setting { far, local_bytes, unit_bytes: 65536, ahead: true, demand, why: String::new() };
        let job = Job::of_memory("on-disk", 220 << 20);
        // With 163 MiB such a job ran, with 158 MiB it was ended.
        assert!(slurm(&job, &setting, false).contains("\n#SBATCH --mem=181M\n"));
        let kubernetes = kubernetes("image", &job, &setting, false);
        let limit = &kubernetes["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"];
        assert_eq!(limit, &json!((181_u64 << 20).saturating_sub(128 << 10).to_string()));
    }

    #[test]
    fn words_stay_words_for_a_shell() {
        assert_eq!(quoted("--far=lz4,ssd:/tmp@1G"), "--far=lz4,ssd:/tmp@1G");
        assert_eq!(quoted("it's $HOME"), "'it'\\''s $HOME'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a\nb"), "'a\nb'");
    }
}
