//! The page of a recording: HTML with its data, its style and its script within.

use super::{Recording, Report};
use serde_json::json;

/// The page; words in double braces are filled in.
const PAGE: &str = include_str!("page.html");

/// The page of a recording.
pub(super) fn html(recording: &Recording, report: &Report) -> String {
    let rows: Vec<u64> = recording.numbers().into_iter().collect();
    let moment = |moment: &super::record::Moment| {
        let parts: Vec<_> = moment
            .parts
            .iter()
            .filter_map(|(number, (faults, here))| {
                Some(json!([rows.binary_search(number).ok()?, faults, here]))
            })
            .collect();
        let moved: Vec<_> =
            moment.moved.iter().map(|(number, (come, gone))| json!([number, come, gone])).collect();
        json!({
            "at": moment.at_s,
            "seconds": moment.seconds,
            "budget": moment.budget_bytes,
            "resident": moment.resident_bytes,
            "far": moment.far_bytes,
            "faults": moment.faults,
            "stall": moment.stall_s,
            "in": moment.in_bytes,
            "out": moment.out_bytes,
            "moved": moved,
            "parts": parts,
        })
    };
    let data = json!({
        "name": recording.about.name,
        "started_ms": recording.started_ms,
        "back_ends": recording.back_ends,
        "part_bytes": 1u64 << recording.part_shift,
        "rows": rows.iter().map(|row| format!("{:x}", row << recording.part_shift)).collect::<Vec<_>>(),
        "moments": recording.moments.iter().map(moment).collect::<Vec<_>>(),
    });
    // No `<` in the data, so that nothing in it ends the script.
    let data = data.to_string().replace('<', "\\u003c");
    PAGE.replace("{{TITLE}}", &escape(&recording.about.name))
        .replace("{{COMMAND}}", &escape(&recording.about.command.join(" ")))
        .replace("{{SUMMARY}}", &table(&summary(recording, report)))
        .replace("{{BACK_ENDS}}", &back_ends(report))
        .replace("{{DATA}}", &data)
}

fn summary(recording: &Recording, report: &Report) -> Vec<(&'static str, String)> {
    let seconds = recording.moments.last().map_or(0.0, |moment| moment.at_s);
    let budget = recording.moments.last().map_or(0, |moment| moment.budget_bytes);
    let mut rows = vec![
        ("Run time", format!("{seconds:.1} s")),
        ("Budget at the end", mib(budget)),
        ("Bytes that move at once", format!("{} KiB", recording.unit_bytes >> 10)),
        ("Copies of each byte", recording.copies.to_string()),
        ("Most here, of memory under service", mib(report.resident_bytes_max)),
        ("Most far", mib(report.far_bytes_max)),
        ("Faults", format!("{}, of them {} first writes", report.faults, report.write_faults)),
        ("Threads waited, all together", format!("{:.2} s", report.stall_s)),
        ("Out, written", mib(report.evicted_bytes)),
        ("Out, without a write", mib(report.clean_bytes + report.zero_evicted_bytes)),
        ("In", format!("{}, of all filled {} ahead", mib(report.fetched_bytes), mib(report.ahead_bytes))),
    ];
    if report.lost_bytes > 0 {
        rows.push(("Lost", format!("{} bytes", report.lost_bytes)));
    }
    rows
}

fn table(rows: &[(&str, String)]) -> String {
    rows.iter().map(|(name, value)| format!("<tr><th>{name}</th><td>{}</td></tr>\n", escape(value))).collect()
}

fn back_ends(report: &Report) -> String {
    let row = |moved: &super::Moved| {
        let (out, come) = (mib(moved.out_bytes), mib(moved.in_bytes));
        let memory = moved.ratio().map_or_else(
            || "none".to_owned(),
            |ratio| format!("{}, {ratio:.1} to 1", mib(moved.memory_bytes_max)),
        );
        format!("<tr><th>{}</th><td>{out}</td><td>{come}</td><td>{memory}</td></tr>\n", escape(&moved.name))
    };
    report.moved.iter().map(row).collect()
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1u32 << 20))
}

fn escape(words: &str) -> String {
    words
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace("{{", "{ {")
}
