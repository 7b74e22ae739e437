//! The functions that the core has, out of its source.

use std::collections::BTreeSet;
use std::path::Path;

/// Names of all functions `hl_...` in a folder of source.
pub fn functions(folder: &Path) -> Result<BTreeSet<String>, String> {
    let mut found = BTreeSet::new();
    collect(folder, &mut found)?;
    if found.is_empty() {
        let hint = "(hint: the functions that programs call are written `extern \"C\" fn hl_NAME`)";
        return Err(format!("{} has no function that starts with hl_ {hint}", folder.display()));
    }
    Ok(found)
}

fn collect(folder: &Path, found: &mut BTreeSet<String>) -> Result<(), String> {
    let wrong = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.is_dir() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            text.lines().for_each(|line| found.extend(named(line)));
        }
    }
    Ok(())
}

/// Names on a line that start with `hl_`. Nothing else is so called, and a name that is used is declared, by hand or by a macro.
fn named(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or_default();
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = code.split(|letter| !is_word(letter));
    words.filter(|word| word.starts_with("hl_")).map(str::to_string).collect()
}
