//! Simulates a big cluster as `hinterland simulate scale --json` does, without the rest of the command: words are NODES RACKS WORKLOAD SECONDS
//! OPERATIONS, and then perhaps `die` (the last rack, after one second), `ask` (homes first) or `still` (no moves).

use hinterland_sim::scale::{ScalePlan, Workload, simulate};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: u32| words.get(place).map_or(Ok(default), |word| word.parse());
    let workload = match words.get(2).map(String::as_str) {
        Some("uniform") => Workload::Uniform,
        Some("zipfian") => Workload::Zipfian,
        Some("shifting") => Workload::Shifting,
        _ => Workload::Tenants,
    };
    let mut plan = ScalePlan {
        nodes: number(0, 100)?,
        racks: number(1, 10)?,
        workload,
        time: Duration::from_secs(number(3, 5)?.into()),
        operations_per_s: number(4, 10_000)?,
        rack_dies: (words.get(5).map(String::as_str) == Some("die")).then(|| Duration::from_secs(1)),
        asks_home_first: words.get(5).is_some_and(|word| word == "ask"),
        ..ScalePlan::default()
    };
    plan.heat.moves = words.get(5).is_none_or(|word| word != "still");
    let begin = Instant::now();
    let figures = simulate(&plan, &|| begin.elapsed().as_nanos() as u64)?;
    println!("{}", serde_json::to_string(&figures)?);
    eprintln!("{:.2} s", begin.elapsed().as_secs_f64());
    Ok(())
}
