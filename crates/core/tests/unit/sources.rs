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

/// A comment that names an ordering: where it is, in which function, its label, and what it says.
struct Sync {
    place: String,
    function: String,
    label: String,
    text: String,
}

fn syncs() -> Vec<Sync> {
    let mut syncs = Vec::new();
    for (path, code) in sources() {
        let (lines, mut function) = (code.lines().map(str::trim).collect::<Vec<_>>(), String::new());
        for (at, line) in lines.iter().enumerate() {
            if let Some((before, after)) = line.split_once("fn ")
                && !before.contains("//")
            {
                function = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            }
            if let Some(label) = label(line).filter(|_| line.contains("// SYNC ")).map(str::to_owned) {
                let following = lines[at + 1..].iter();
                let rest = following.take_while(|line| line.starts_with("//") && !line.contains("SYNC "));
                let text = std::iter::once(line).chain(rest).map(|line| line.trim_start_matches("// "));
                let (place, text) =
                    (format!("{}:{}", path.display(), at + 1), text.collect::<Vec<_>>().join(" "));
                syncs.push(Sync { place, function: function.clone(), label, text });
            }
        }
    }
    syncs
}

/// The functions that a comment names as the other ends: "Acquire in `a` and `Type::b`".
fn partners(text: &str) -> Vec<&str> {
    let mut partners = Vec::new();
    for mut rest in text.split(" in `").skip(1) {
        while let Some((name, after)) = rest.split_once('`') {
            partners.push(name.rsplit("::").next().unwrap_or(name));
            let Some(more) = after.strip_prefix(", `").or_else(|| after.strip_prefix(" and `")) else {
                break;
            };
            rest = more;
        }
    }
    partners
}

#[test]
fn every_sync_label_has_two_ends() {
    let syncs = syncs();
    let mut ends: BTreeMap<&str, Vec<&Sync>> = BTreeMap::new();
    syncs.iter().for_each(|sync| ends.entry(&sync.label).or_default().push(sync));
    for (label, ends) in &ends {
        for side in [["Acquire", "AcqRel", "fence"], ["Release", "AcqRel", "fence"]] {
            let has_side = ends.iter().any(|end| side.iter().any(|ordering| end.text.contains(ordering)));
            assert!(ends.len() > 1 && has_side, "{label} has one end only: {}", ends[0].place);
        }
    }
}

#[test]
fn every_end_of_a_sync_label_names_another() {
    let syncs = syncs();
    for sync in &syncs {
        let partners = partners(&sync.text);
        assert!(!partners.is_empty(), "{} names no partner: {}", sync.place, sync.text);
        for partner in partners {
            let is_end = |other: &Sync| other.label == sync.label && other.function == partner;
            assert!(syncs.iter().any(is_end), "{}: `{partner}` is no end of {}", sync.place, sync.label);
        }
    }
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
