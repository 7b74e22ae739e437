//! Dependency arrows: a crate may use only what lies below it in the house.

use crate::finding::Finding;
use crate::tree::Tree;
use serde_json::Value;
use std::process::Command;

/// How crates of one layer may use each other.
enum Within {
    /// A crate may use those that stand to its left.
    Left,
    /// Only these pairs, each read as `user -> used`.
    Only(&'static [(&'static str, &'static str)]),
    /// Any pair: cargo itself refuses circles.
    Any,
}

struct Layer {
    name: &'static str,
    crates: &'static [&'static str],
    within: Within,
}

/// The house from the ground up. ARCHITECTURE.md draws the same map.
const HOUSE: &[Layer] = &[
    Layer {
        name: "logic",
        crates: &["types", "proto", "directory", "policy", "resp", "fatbin", "ptx", "cudanames", "farplan"],
        within: Within::Left,
    },
    Layer {
        name: "mechanism",
        crates: &["os", "etcd", "ring", "channel", "kv", "shelf", "gpu", "fabric", "pool"],
        within: Within::Left,
    },
    Layer {
        name: "services",
        crates: &["node", "gpunode", "far", "farblock"],
        within: Within::Only(&[("farblock", "far")]),
    },
    Layer {
        name: "access",
        crates: &["region", "fuse", "preload", "gateway", "cuda"],
        within: Within::Only(&[("preload", "region")]),
    },
    // It runs no product part but logic, and one face shows it.
    Layer { name: "simulation", crates: &["sim"], within: Within::Only(&[]) },
    Layer { name: "faces", crates: &["cli", "c", "python"], within: Within::Only(&[]) },
    Layer { name: "dev", crates: &["xtask", "table"], within: Within::Any },
];

/// The only crates that may run an asynchronous runtime.
const TOKIO_CRATES: &[&str] = &["node", "gpunode", "cli"];

/// One arrow as cargo reports it.
#[derive(Debug)]
struct Arrow {
    user: String,
    used: String,
    for_tests: bool,
    manifest: String,
}

/// Reads `cargo metadata` and reports arrows that point up or sideways.
///
/// # Errors
/// A sentence when cargo cannot describe the workspace.
pub fn check(tree: &Tree) -> Result<Vec<Finding>, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(&tree.root)
        .output()
        .map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata is not JSON: {error}"))?;
    let root = format!("{}/", tree.root.display());
    let mut findings = Vec::new();
    for arrow in arrows(&metadata, &root) {
        if let Some(message) = verdict(&arrow) {
            let text = tree.file(&arrow.manifest).map_or("", |file| file.text.as_str());
            let line = line_naming(text, &arrow.used);
            findings.push(Finding::new(&arrow.manifest, line, message));
        }
    }
    let map = tree.file("ARCHITECTURE.md").map_or("", |file| file.text.as_str());
    for package in packages(&metadata) {
        let name = short_name(string(package, "name"));
        let manifest = string(package, "manifest_path").replace(&root, "");
        if !map.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == name) {
            let message = format!("crate {name} is not on the map in ARCHITECTURE.md");
            findings.push(Finding::new(&manifest, 1, message));
        }
        if layer_of(name).is_none() {
            let message = format!(
                "crate {name} has no place in the house (hint: add it to HOUSE in xtask and to ARCHITECTURE.md)"
            );
            findings.push(Finding::new(&manifest, 1, message));
        }
    }
    Ok(findings)
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

fn string<'value>(value: &'value Value, key: &str) -> &'value str {
    value[key].as_str().unwrap_or("")
}

fn short_name(package: &str) -> &str {
    package.strip_prefix("hinterland-").unwrap_or(package)
}

fn arrows(metadata: &Value, root: &str) -> Vec<Arrow> {
    let mut found = Vec::new();
    for package in packages(metadata) {
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            found.push(Arrow {
                user: short_name(string(package, "name")).to_string(),
                used: string(dependency, "name").to_string(),
                for_tests: string(dependency, "kind") == "dev",
                manifest: string(package, "manifest_path").replace(root, ""),
            });
        }
    }
    found
}

/// Where a crate stands: its layer from the ground, and its place from the left.
fn layer_of(name: &str) -> Option<(usize, usize)> {
    HOUSE.iter().enumerate().find_map(|(level, layer)| {
        let place = layer.crates.iter().position(|member| *member == name)?;
        Some((level, place))
    })
}

/// What is wrong with an arrow, if anything.
fn verdict(arrow: &Arrow) -> Option<String> {
    if arrow.used == "tokio" && !TOKIO_CRATES.contains(&arrow.user.as_str()) {
        return Some(format!("{} uses tokio; only {} may", arrow.user, TOKIO_CRATES.join(", ")));
    }
    let used = arrow.used.strip_prefix("hinterland-")?;
    let (user_level, user_place) = layer_of(&arrow.user)?;
    let (used_level, used_place) = layer_of(used)?;
    let (user_layer, used_layer) = (&HOUSE[user_level], &HOUSE[used_level]);
    let test_of_dev = arrow.for_tests && matches!(used_layer.name, "dev" | "simulation");
    if used_level > user_level && !test_of_dev {
        return Some(format!(
            "{} ({}) may not use {used} ({}): arrows point down (hint: move the shared part into a lower crate)",
            arrow.user, user_layer.name, used_layer.name
        ));
    }
    let allowed = user_level != used_level
        || match user_layer.within {
            Within::Left => used_place < user_place,
            Within::Only(pairs) => pairs.contains(&(arrow.user.as_str(), used)),
            Within::Any => true,
        };
    (!allowed).then(|| {
        format!(
            "{} may not use {used}: both are {} (hint: move the shared part into a lower layer)",
            arrow.user, user_layer.name
        )
    })
}

/// The line of a manifest that names a dependency, or the first.
fn line_naming(manifest: &str, dependency: &str) -> usize {
    let names = |line: &str| {
        line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with([' ', '.', '=']))
            || line.contains(&format!("dependencies.{dependency}]"))
    };
    manifest.lines().position(names).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrow(user: &str, used: &str) -> Arrow {
        let used = if used == "tokio" { used.to_string() } else { format!("hinterland-{used}") };
        Arrow { user: user.to_string(), used, for_tests: false, manifest: String::new() }
    }

    fn refused(user: &str, used: &str) -> bool {
        verdict(&arrow(user, used)).is_some()
    }

    #[test]
    fn an_arrow_up_is_refused_and_down_is_not() {
        assert!(refused("types", "os"));
        assert!(refused("pool", "node"));
        assert!(refused("node", "cli"));
        assert!(!refused("node", "pool"));
        assert!(!refused("cli", "types"));
        assert!(!refused("pool", "policy"));
    }

    #[test]
    fn access_crates_never_use_each_other_but_preload_may_use_region() {
        assert!(refused("fuse", "region"));
        assert!(refused("region", "preload"));
        assert!(!refused("preload", "region"));
    }

    #[test]
    fn within_mechanism_arrows_point_left() {
        assert!(!refused("ring", "os"));
        assert!(refused("os", "ring"));
        assert!(!refused("pool", "fabric"));
    }

    #[test]
    fn tokio_stays_in_the_services_and_the_command_line() {
        assert!(refused("pool", "tokio"));
        assert!(!refused("node", "tokio"));
    }

    #[test]
    fn tests_may_use_the_simulator_but_nothing_else_above() {
        let for_tests = |user, used| Arrow { for_tests: true, ..arrow(user, used) };
        assert!(verdict(&for_tests("directory", "sim")).is_none());
        assert!(verdict(&for_tests("directory", "os")).is_some());
        assert!(refused("directory", "sim"));
    }

    #[test]
    fn metadata_becomes_arrows() {
        let metadata = serde_json::json!({"packages": [{
            "name": "hinterland-ring",
            "manifest_path": "/tree/crates/ring/Cargo.toml",
            "dependencies": [{"name": "hinterland-node", "kind": null}, {"name": "tokio", "kind": "dev"}]
        }]});
        let found = arrows(&metadata, "/tree/");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].manifest, "crates/ring/Cargo.toml");
        assert!(found.iter().all(|arrow| verdict(arrow).is_some()));
        assert!(found[1].for_tests);
    }

    #[test]
    fn a_finding_points_at_the_line_of_the_dependency() {
        let manifest = "[dependencies]\nhinterland-os.workspace = true\nhinterland-ring = {}\n";
        assert_eq!(line_naming(manifest, "hinterland-ring"), 3);
        assert_eq!(line_naming(manifest, "hinterland-os"), 2);
        assert_eq!(line_naming(manifest, "absent"), 1);
    }
}
