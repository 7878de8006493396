//! What the compiler does not check about the core's own sources: that every ordering says what it pairs with, and that loom
//! sees every atomic that it can see.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Each file below `src`, without its tests.
fn sources() -> Vec<(PathBuf, String)> {
    fn collect(folder: &Path, into: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("\nmod tests {").next().unwrap().to_owned();
                into.push((path, code));
            }
        }
    }
    let mut sources = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut sources);
    assert!(!sources.is_empty());
    sources
}

fn label(line: &str) -> Option<&str> {
    let (_, after) = line.split_once("SYNC ")?;
    let label = after.split(|c: char| !c.is_ascii_lowercase() && c != '_' && c != '.').next()?;
    label.contains('.').then(|| label.trim_end_matches('.'))
}

#[test]
fn every_sync_label_has_two_ends() {
    let mut ends: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, code) in sources() {
        for (number, line) in (1..).zip(code.lines()) {
            if let Some(label) = label(line) {
                ends.entry(label.to_owned()).or_default().push(format!("{}:{number}", path.display()));
            }
        }
    }
    ends.retain(|_, places| places.len() < 2);
    assert!(ends.is_empty(), "these labels are named once only: {ends:#?}");
}

#[test]
fn every_ordering_but_relaxed_has_a_sync_label() {
    const ABOVE: usize = 10;
    const ORDERINGS: [&str; 4] =
        ["Ordering::Acquire", "Ordering::Release", "Ordering::AcqRel", "Ordering::SeqCst"];
    let mut missing = Vec::new();
    for (path, code) in sources() {
        let lines: Vec<&str> = code.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            // `fence` itself asks which ordering it was given.
            let uses = ORDERINGS.iter().any(|ordering| line.contains(ordering))
                && !line.trim_start().starts_with("//")
                && !line.contains("ordering == ");
            if uses && !lines[at.saturating_sub(ABOVE)..=at].iter().any(|line| label(line).is_some()) {
                missing.push(format!("{}:{}: {}", path.display(), at + 1, line.trim()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn atomics_come_from_sys_sync_or_say_why_loom_has_none() {
    let mut strangers = Vec::new();
    for (path, code) in sources().into_iter().filter(|(path, _)| !path.ends_with("sys/sync.rs")) {
        let lines: Vec<&str> = code.lines().collect();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.contains("std::sync::atomic")) {
            let says_why = lines[at.saturating_sub(1)..=at]
                .iter()
                .any(|line| line.contains("// ") && line.to_lowercase().contains("loom"));
            if !says_why {
                strangers.push(format!("{}:{}: {}", path.display(), at + 1, line.trim()));
            }
        }
    }
    assert!(strangers.is_empty(), "{strangers:#?}");
}
