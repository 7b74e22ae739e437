//! Contours of a value over two thresholds, as an SVG picture: bands of colour, lines between them, and a scale.

use hinterland_farplan::balance::Point;
use std::collections::BTreeMap;
use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 50.0;
const SIDE: f64 = 440.0;
/// Bands of colour.
const BANDS: usize = 10;
/// Ends and middle of the colours: dark blue, green, yellow.
const COLOURS: [[f64; 3]; 3] = [[48.0, 40.0, 110.0], [40.0, 150.0, 140.0], [250.0, 225.0, 70.0]];

/// A whole SVG document over a grid whose thresholds are `step` apart, with marks at the highest point and at the matched one.
pub fn svg(title: &str, points: &[Point], matched: &Point, step: usize) -> String {
    let most = points.iter().map(|point| point.effect).fold(0.0, f64::max).max(1e-9);
    let step = step as f64;
    let mut body = String::new();
    let known: BTreeMap<(u64, u64), usize> = points
        .iter()
        .map(|point| ((point.low as u64, point.high as u64), band(point.effect, most)))
        .collect();
    for point in points {
        cell(&mut body, point, step, &colour(band(point.effect, most)));
    }
    for ((low, high), here) in &known {
        lines(&mut body, &known, (*low, *high), *here, step as u64);
    }
    axes(&mut body);
    scale(&mut body, most);
    if let Some(best) = points.iter().max_by(|a, b| a.effect.total_cmp(&b.effect)) {
        mark(&mut body, best, "highest");
    }
    mark(&mut body, matched, "matched");
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"28\" font-size=\"15\">{}</text>\n{body}</svg>\n",
        title.replace('&', "&amp;").replace('<', "&lt;")
    )
}

fn across(low: f64) -> f64 {
    LEFT + low / 100.0 * SIDE
}

fn down(high: f64) -> f64 {
    TOP + SIDE - high / 100.0 * SIDE
}

fn band(effect: f64, most: f64) -> usize {
    ((effect / most * BANDS as f64) as usize).min(BANDS - 1)
}

fn colour(band: usize) -> String {
    let at = band as f64 / (BANDS - 1) as f64 * 2.0;
    let (from, part) = if at < 1.0 { (0, at) } else { (1, at - 1.0) };
    let mix = |index: usize| {
        let (a, b) = (COLOURS[from][index], COLOURS[from + 1][index]);
        (a + (b - a) * part).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2))
}

fn cell(body: &mut String, point: &Point, step: f64, colour: &str) {
    let side = step / 100.0 * SIDE;
    let (x, y) = (across(point.low) - side / 2.0, down(point.high) - side / 2.0);
    // A little larger than the grid, so that no white shows between two.
    let _ = writeln!(
        body,
        "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{:.2}\" fill=\"{colour}\" shape-rendering=\"crispEdges\"/>",
        side + 0.3,
        side + 0.3
    );
}

/// Lines where the band changes to the right of a cell and above it.
fn lines(
    body: &mut String,
    known: &BTreeMap<(u64, u64), usize>,
    (low, high): (u64, u64),
    here: usize,
    step: u64,
) {
    let half = step as f64 / 100.0 * SIDE / 2.0;
    let (x, y) = (across(low as f64), down(high as f64));
    let mut line = |x1: f64, y1: f64, x2: f64, y2: f64| {
        let _ = writeln!(
            body,
            "<path d=\"M{x1:.2} {y1:.2}L{x2:.2} {y2:.2}\" stroke=\"#222\" stroke-width=\"0.6\"/>"
        );
    };
    if known.get(&(low + step, high)).is_some_and(|other| *other != here) {
        line(x + half, y - half, x + half, y + half);
    }
    if known.get(&(low, high + step)).is_some_and(|other| *other != here) {
        line(x - half, y - half, x + half, y - half);
    }
}

/// A ring and words, to the left of a point in the right half and below it, where nothing else is.
fn mark(body: &mut String, point: &Point, words: &str) {
    let (x, y) = (across(point.low), down(point.high));
    let (anchor, aside) = if point.low > 50.0 { ("end", -10.0) } else { ("start", 10.0) };
    let _ = writeln!(
        body,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"none\" stroke=\"#cf222e\" stroke-width=\"2\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"#cf222e\">{words} {:.1} %</text>",
        x + aside,
        y + 18.0,
        point.effect
    );
}

fn axes(body: &mut String) {
    let _ = writeln!(
        body,
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"none\" stroke=\"#444\"/>"
    );
    for tick in (0..=100).step_by(20) {
        let (x, y) = (across(f64::from(tick)), down(f64::from(tick)));
        let bottom = TOP + SIDE;
        let _ = writeln!(
            body,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            bottom + 18.0,
            LEFT - 8.0,
            y + 4.0
        );
    }
    let middle = LEFT + SIDE / 2.0;
    let (below, aside) = (TOP + SIDE + 42.0, TOP + SIDE / 2.0);
    let _ = writeln!(
        body,
        "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">low: machines below lend (% of memory in use)</text>\
         <text x=\"24\" y=\"{aside}\" text-anchor=\"middle\" transform=\"rotate(-90 24 {aside})\">high: machines above borrow (%)</text>"
    );
}

fn scale(body: &mut String, most: f64) {
    let (x, height) = (LEFT + SIDE + 24.0, SIDE / BANDS as f64);
    for band in 0..BANDS {
        let y = TOP + SIDE - (band + 1) as f64 * height;
        let from = most * band as f64 / BANDS as f64;
        let _ = writeln!(
            body,
            "<rect x=\"{x}\" y=\"{y:.1}\" width=\"22\" height=\"{height:.1}\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{from:.1} %</text>",
            colour(band),
            x + 28.0,
            y + height
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_farplan::balance::Utilisation;

    #[test]
    fn a_picture_has_a_cell_for_each_pair_and_lines_between_bands() {
        let points = Utilisation::of(vec![10.0, 90.0]).map(|found| found.grid(10)).unwrap_or_default();
        let picture = svg("a <b> & c", &points, &points[5], 10);
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
        // The ground, the frame, the cells and the scale.
        assert_eq!(picture.matches("<rect").count(), 2 + points.len() + BANDS);
        assert!(picture.contains("<path") && picture.contains("a &lt;b> &amp; c"));
    }

    #[test]
    fn bands_go_from_the_least_to_the_most() {
        assert_eq!((band(0.0, 8.0), band(8.0, 8.0), band(4.0, 8.0)), (0, BANDS - 1, 5));
        assert_ne!(colour(0), colour(BANDS - 1));
    }
}
