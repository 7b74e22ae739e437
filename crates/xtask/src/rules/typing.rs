//! The Python package is typed: it ships `py.typed` and a stub for its compiled module.

use crate::finding::Finding;
use crate::tree::Tree;

const PACKAGE: &str = "python/hinterland/";

/// Checks the package once it exists.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let has = |wanted: &dyn Fn(&str) -> bool| {
        tree.paths.iter().any(|path| path.strip_prefix(PACKAGE).is_some_and(wanted))
    };
    if !has(&|_| true) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if !has(&|name| name == "py.typed") {
        findings.push(Finding::new(
            PACKAGE,
            1,
            "no py.typed (hint: an empty file tells type checkers to look)",
        ));
    }
    if !has(&|name| name.ends_with(".pyi")) {
        findings.push(Finding::new(PACKAGE, 1, "no .pyi stub for the compiled module"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(paths: &[&str]) -> usize {
        let paths = paths.iter().map(|path| path.to_string()).collect();
        check(&Tree { paths, ..Tree::default() }).len()
    }

    #[test]
    fn a_package_without_types_is_found() {
        assert_eq!(count(&["python/hinterland/__init__.py"]), 2);
        assert_eq!(count(&["python/hinterland/py.typed", "python/hinterland/_native.pyi"]), 0);
        assert_eq!(count(&["README.md"]), 0);
    }
}
