//! Bars of a report as a picture: for each case ours, the limit and the peer, on a scale of their own.

use super::report::{Report, Row, figure};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const LABEL_WIDTH: f64 = 190.0;
const BAR_WIDTH_MAX: f64 = 420.0;
const BAR_HEIGHT: f64 = 14.0;
const BAR_PITCH: f64 = 18.0;
const CASE_GAP: f64 = 14.0;
const TOP: f64 = 48.0;
const OURS: &str = "#1f6feb";
const LIMIT: &str = "#9aa4b1";
const PEER: &str = "#d29922";

/// A whole SVG document.
pub fn svg(report: &Report) -> String {
    let mut body = String::new();
    let mut top = TOP;
    for row in &report.rows {
        top = case(&mut body, row, top) + CASE_GAP;
    }
    let title =
        escape(&format!("{} on {} CPUs, Linux {}", report.bench, report.machine.cpus, report.machine.kernel));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{top}\" viewBox=\"0 0 {WIDTH} {top}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{top}\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"24\" font-size=\"16\">{title}</text>\n{body}</svg>\n"
    )
}

/// Draws one case and gives where it ends.
fn case(body: &mut String, row: &Row, top: f64) -> f64 {
    let arrow =
        if row.better == super::report::Better::Lower { "lower is better" } else { "higher is better" };
    let label = escape(&format!("{} ({}, {arrow})", row.case, row.unit));
    let limit_name = row.limit_name.as_deref().unwrap_or("limit");
    let peer_name = row.peer_name.as_deref().unwrap_or("peer");
    let bars: Vec<(f64, &str, &str)> =
        [(row.ours, "hinterland", OURS), (row.limit, limit_name, LIMIT), (row.peer, peer_name, PEER)]
            .into_iter()
            .filter_map(|(value, name, colour)| Some((value?, name, colour)))
            .collect();
    let largest = bars.iter().map(|bar| bar.0.abs()).fold(0.0, f64::max);
    text(body, 10.0, top + 11.0, &label);
    let mut line = top + BAR_PITCH;
    if bars.is_empty() {
        text(body, LABEL_WIDTH, line + 11.0, &escape(row.why.as_deref().unwrap_or("no figure")));
        return line + BAR_PITCH;
    }
    for (value, name, colour) in bars {
        let width = if largest > 0.0 { value.abs() / largest * BAR_WIDTH_MAX } else { 0.0 };
        // Writing to a string cannot fail.
        let _ = writeln!(
            body,
            "<rect x=\"{LABEL_WIDTH}\" y=\"{line}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{colour}\"/>"
        );
        text(body, 24.0, line + 11.0, &escape(name));
        text(body, LABEL_WIDTH + width + 6.0, line + 11.0, &figure(Some(value)));
        line += BAR_PITCH;
    }
    line
}

fn text(body: &mut String, x: f64, y: f64, words: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\">{words}</text>");
}

fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::sample;

    #[test]
    fn every_figure_is_a_bar_as_long_as_its_share_of_the_largest() {
        let picture = svg(&sample());
        assert_eq!(picture.matches("<rect x=").count(), 2);
        assert!(picture.contains("width=\"357.0\"") && picture.contains("width=\"420.0\""), "{picture}");
        assert!(picture.contains(">no huge pages<"));
    }

    #[test]
    fn names_cannot_break_the_picture() {
        let mut report = sample();
        report.bench = "<script>&".to_owned();
        assert!(svg(&report).contains("&lt;script&gt;&amp;"));
    }
}
