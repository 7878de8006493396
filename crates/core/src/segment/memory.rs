//! How much memory there is to be had: what the kernel says is available, and what the control groups of this process leave.
//!
//! The kernel does not refuse shared memory for which there is no room in a control group: it kills a process of the group. So
//! creation asks first. Every group from our own up to the mounted root counts. What a group uses already is taken off, but for
//! the file cache, which the kernel drops before it kills. Shared memory is no file cache.
//!
//! Both versions of control groups are read, also side by side: version 2 (`memory.max`) and version 1
//! (`memory.limit_in_bytes`). Where the groups lie is read from `/proc/self/cgroup` and `/proc/self/mountinfo`. Not counted: swap,
//! and `memory.high`, above which the kernel only slows a group down. A file that cannot be read limits nothing.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Kept free in a group, for what the kernel and the allocator take besides: page tables, the index of the pages.
const HEADROOM: u64 = 4 << 20;
/// Version 1 has no word for "no limit", only a very large number.
const UNLIMITED: u64 = 1 << 60;

/// The limit of one control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The file that says it.
    pub file: PathBuf,
    pub bytes: u64,
    /// What the group uses now, without file cache that the kernel can drop. 0 where the kernel does not say.
    pub used: u64,
}

impl Limit {
    pub fn left(&self) -> u64 {
        self.bytes.saturating_sub(self.used)
    }

    /// How much of it a new segment may take.
    fn spare(&self) -> u64 {
        self.left().saturating_sub(HEADROOM)
    }
}

/// Why there is not enough memory: how much is left, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    pub left: u64,
    /// Completes "there are … bytes of memory left".
    pub place: String,
    /// What else could be done about it; begins with a comma, or is empty.
    pub advice: &'static str,
}

/// How many bytes this process may reserve at most; `None` where nothing says so. `root`: as for [`shortage`].
pub fn left(root: &Path) -> Option<u64> {
    let group = limits(root).first().map(Limit::spare);
    [on_the_machine(root), group].into_iter().flatten().min()
}

/// What keeps this process from reserving so many bytes, if anything does. `root`: where `proc` and `sys` lie.
pub fn shortage(root: &Path, need: u64) -> Option<Shortage> {
    let machine = on_the_machine(root);
    let group = limits(root).into_iter().next();
    match (machine, group) {
        (_, Some(limit)) if limit.spare() < need && machine.is_none_or(|left| limit.spare() <= left) => {
            Some(Shortage {
                left: limit.spare(),
                place: format!(
                    "in this control group: it may use {} bytes ({}), {} are used, and {HEADROOM} stay free",
                    limit.bytes,
                    limit.file.display(),
                    limit.used,
                ),
                advice: ", close what holds memory, or raise the limit (docker: --memory; kubernetes: \
                         resources.limits.memory; systemd: MemoryMax=)",
            })
        }
        (Some(left), _) if left < need => {
            Some(Shortage { left, place: "on this machine (MemAvailable)".to_owned(), advice: "" })
        }
        _ => None,
    }
}

/// The limits of the control groups of this process, the one that leaves the least first. `root`: where `proc` and `sys` lie.
pub fn limits(root: &Path) -> Vec<Limit> {
    let membership = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mut limits: Vec<Limit> = mounts
        .lines()
        .filter_map(Mount::parse)
        .flat_map(|mount| mount.groups(&membership).into_iter().map(move |group| (mount.version, group)))
        .filter_map(|(version, group)| limit_of(root, version, &group))
        .collect();
    limits.sort_by_key(Limit::left);
    limits
}

fn on_the_machine(root: &Path) -> Option<u64> {
    read_to_string(root.join("proc/meminfo")).ok().and_then(|text| available(&text))
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// The hierarchy of its own that the memory controller has.
    One,
    /// The hierarchy that all controllers share.
    Two,
}

/// Where a hierarchy of control groups can be seen, and which part of it.
struct Mount {
    version: Version,
    /// The group that is mounted there, as seen from this process.
    group: String,
    point: String,
}

impl Mount {
    /// From a line of mountinfo: `36 35 98:0 /group /point options … - type source options`.
    fn parse(line: &str) -> Option<Mount> {
        let (before, after) = line.split_once(" - ")?;
        let (mut before, mut after) = (before.split(' ').skip(3), after.split(' '));
        let (group, point) = (unescaped(before.next()?), unescaped(before.next()?));
        let version = match after.next()? {
            "cgroup2" => Version::Two,
            "cgroup" if after.nth(1)?.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        Some(Mount { version, group, point })
    }

    /// The directories of our group and of those above it, as far as they are mounted here.
    fn groups(&self, membership: &str) -> Vec<PathBuf> {
        let ours = membership.lines().find_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let meant = match self.version {
                Version::One => controllers.split(',').any(|controller| controller == "memory"),
                Version::Two => number == "0" && controllers.is_empty(),
            };
            meant.then_some(path)
        });
        let Some(ours) = ours else { return Vec::new() };
        let parts = |path: &str| -> Vec<String> {
            path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        let (ours, mounted) = (parts(ours), parts(&self.group));
        let below = match ours.strip_prefix(mounted.as_slice()) {
            // Another branch: its limits are not ours.
            Some(below) if below.iter().any(|part| part == "..") => return Vec::new(),
            Some(below) => below,
            // Mounted from outside of our namespace: a group above us, to which our path does not lead. Or a container whose
            // paths are the host's: then what is mounted is its own group.
            None => &[],
        };
        let mut here = PathBuf::from(&self.point);
        let mut groups = vec![here.clone()];
        for part in below {
            here.push(part);
            groups.push(here.clone());
        }
        groups
    }
}

/// Spaces and the like are octal numbers in mountinfo: `\040`.
fn unescaped(field: &str) -> String {
    ["040", "011", "012", "134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(field.to_owned(), |text, (code, char)| text.replace(&format!("\\{code}"), char))
}

fn limit_of(root: &Path, version: Version, group: &Path) -> Option<Limit> {
    let read =
        |file: &str| read_to_string(root.join(group.strip_prefix("/").unwrap_or(group)).join(file)).ok();
    let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
    let (limit, usage, caches) = match version {
        Version::One => {
            ("memory.limit_in_bytes", "memory.usage_in_bytes", ["total_inactive_file", "total_active_file"])
        }
        Version::Two => ("memory.max", "memory.current", ["inactive_file", "active_file"]),
    };
    let bytes = number(limit).filter(|&bytes| bytes < UNLIMITED)?;
    let stat = read("memory.stat").unwrap_or_default();
    let cache = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(what, _)| caches.contains(what))
        .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
        .fold(0u64, u64::saturating_add);
    let used = number(usage).unwrap_or(0).saturating_sub(cache);
    Some(Limit { file: group.join(limit), bytes, used })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A directory with files in it, gone when it is dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn of(files: &[(&str, &str)]) -> Tree {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let root = std::env::temp_dir().join(format!("rollway-cgroups-{}-{number}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Tree(root)
        }

        /// What each group may use and uses, the tightest first.
        fn limits(&self) -> Vec<(String, u64, u64)> {
            let limits = limits(&self.0).into_iter();
            limits.map(|limit| (limit.file.display().to_string(), limit.bytes, limit.used)).collect()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const V2: &str = "31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n";
    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const MIB: u64 = 1 << 20;

    #[test]
    fn meminfo_is_read_in_bytes() {
        assert_eq!(available("MemTotal: 8 kB\nMemAvailable:   21088 kB\n"), Some(21088 * 1024));
        assert_eq!(available("MemTotal: 8 kB\n"), None);
        assert_eq!(available(&format!("MemAvailable: {} kB\n", u64::MAX)), None);
        assert_eq!(shortage(Path::new("/"), 4096), None);
    }

    #[test]
    fn every_group_above_ours_limits_us_in_version_2() {
        let tree = Tree::of(&[
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/pod/box/job\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/memory.max", "209715200\n"), // 200 MiB, 150 used by all boxes together
            ("sys/fs/cgroup/pod/memory.current", "157286400\n"),
            ("sys/fs/cgroup/pod/box/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/box/memory.current", "1\n"),
            ("sys/fs/cgroup/pod/box/job/memory.max", "104857600\n"), // 100 MiB, nearly empty
            ("sys/fs/cgroup/pod/box/job/memory.current", "1048576\n"),
            ("sys/fs/cgroup/other/memory.max", "1\n"),
        ]);
        let pod = ("/sys/fs/cgroup/pod/memory.max".to_owned(), 200 * MIB, 150 * MIB);
        let job = ("/sys/fs/cgroup/pod/box/job/memory.max".to_owned(), 100 * MIB, MIB);
        assert_eq!(tree.limits(), [pod, job]);
        assert_eq!(shortage(&tree.0, 40 * MIB), None);
        let short = shortage(&tree.0, 60 * MIB).unwrap();
        assert_eq!(short.left, 46 * MIB, "some of it stays free");
        assert!(short.place.contains("209715200") && short.place.contains("157286400"), "{}", short.place);
        assert!(short.place.contains("/sys/fs/cgroup/pod/memory.max"), "{}", short.place);
    }

    #[test]
    fn file_cache_is_not_used_memory_and_shared_memory_is() {
        let tree = Tree::of(&[
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "1000\n"),
            ("sys/fs/cgroup/memory.current", "900\n"),
            (
                "sys/fs/cgroup/memory.stat",
                "anon 100\nfile 800\nshmem 300\ninactive_file 400\nactive_file 100\n",
            ),
        ]);
        assert_eq!(tree.limits(), [("/sys/fs/cgroup/memory.max".to_owned(), 1000, 400)]);
    }

    #[test]
    fn version_1_is_read_with_what_its_children_cache() {
        let tree = Tree::of(&[
            ("proc/self/mountinfo", V1),
            ("proc/self/cgroup", "4:memory:/jobs/mine\n3:cpu:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "5000\n"),
            ("sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "4000\n"),
            ("sys/fs/cgroup/memory/jobs/memory.stat", "inactive_file 1\ntotal_inactive_file 1500\n"),
        ]);
        let jobs = "/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes".to_owned();
        assert_eq!(tree.limits(), [(jobs, 5000, 2500)]);
    }

    #[test]
    fn in_a_hybrid_of_both_versions_the_one_that_has_the_controller_counts() {
        let unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let tree = Tree::of(&[
            (
                "proc/self/mountinfo",
                &format!("{V1}{unified}33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"),
            ),
            ("proc/self/cgroup", "4:memory:/a\n1:cpu:/a\n0::/user.slice\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "7000\n"),
            ("sys/fs/cgroup/cpu/a/memory.limit_in_bytes", "1\n"),
            ("sys/fs/cgroup/unified/user.slice/cgroup.procs", "1\n"),
        ]);
        let a = "/sys/fs/cgroup/memory/a/memory.limit_in_bytes".to_owned();
        assert_eq!(tree.limits(), [(a, 7000, 0)]);
    }

    #[test]
    fn a_container_sees_the_end_of_a_path_of_the_host() {
        let mount = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        for (ours, file) in [("/docker/abc", ""), ("/docker/abc/inner", "inner/"), ("/elsewhere", "")] {
            let path = format!("sys/fs/cgroup/memory/{file}memory.limit_in_bytes");
            let tree = Tree::of(&[
                ("proc/self/mountinfo", mount),
                ("proc/self/cgroup", &format!("4:memory:{ours}\n")),
                (&path, "800\n"),
            ]);
            assert_eq!(tree.limits(), [(format!("/{path}"), 800, 0)], "{ours}");
        }
    }

    #[test]
    fn groups_outside_of_a_namespace_count_only_where_they_are_above_us() {
        // What is mounted, our path, and the group that counts.
        let above = ("/../..", "/", Some(""));
        let beside = ("/", "/../other", None);
        let below_above = ("/..", "/../other", Some("other/"));
        for (mounted, ours, counts) in [above, beside, below_above] {
            let tree = Tree::of(&[
                (
                    "proc/self/mountinfo",
                    &format!("31 23 0:28 {mounted} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
                ),
                ("proc/self/cgroup", &format!("0::{ours}\n")),
                (&format!("sys/fs/cgroup/{}memory.max", counts.unwrap_or("")), "900\n"),
            ]);
            let expected = counts.map(|group| (format!("/sys/fs/cgroup/{group}memory.max"), 900, 0));
            assert_eq!(tree.limits(), Vec::from_iter(expected), "{mounted} {ours}");
        }
    }

    #[test]
    fn a_mount_point_with_a_space_in_it_is_found() {
        let tree = Tree::of(&[
            ("proc/self/mountinfo", "31 23 0:28 / /sys/c\\040g rw - cgroup2 cgroup2 rw\n"),
            ("proc/self/cgroup", "0::/\n"),
            ("sys/c g/memory.max", "900\n"),
        ]);
        assert_eq!(tree.limits(), [("/sys/c g/memory.max".to_owned(), 900, 0)]);
    }

    #[test]
    fn what_makes_no_sense_limits_nothing() {
        let v2 = |limit: &str, used: &str| {
            Tree::of(&[
                ("proc/self/mountinfo", V2),
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/memory.max", limit),
                ("sys/fs/cgroup/memory.current", used),
                (
                    "sys/fs/cgroup/memory.stat",
                    "inactive_file\n\ninactive_file x\ninactive_file 18446744073709551615\n",
                ),
            ])
            .limits()
        };
        for limit in ["max\n", "", "-1", "12 kB", "99999999999999999999999"] {
            assert_eq!(v2(limit, "5"), [], "{limit:?}");
        }
        assert_eq!(v2("10", "garbage"), [("/sys/fs/cgroup/memory.max".to_owned(), 10, 0)]);
        for (mounts, membership) in [
            ("", ""),
            ("- - -\n - \n1 2 3\n", "::\n0\n"),
            (V2, "0:\n"),
            ("31 23 0:28 / /sys - cgroup\n", "4:memory:/\n"),
        ] {
            let tree = Tree::of(&[("proc/self/mountinfo", mounts), ("proc/self/cgroup", membership)]);
            assert_eq!(tree.limits(), [], "{mounts:?} {membership:?}");
            assert_eq!(shortage(&tree.0, u64::MAX), None);
        }
    }

    #[test]
    fn of_the_machine_and_the_groups_the_one_that_leaves_less_is_named() {
        let tree = Tree::of(&[
            ("proc/meminfo", "MemAvailable: 51200 kB\n"), // 50 MiB
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "104857600\n"), // 100 MiB
        ]);
        let machine =
            Shortage { left: 50 * MIB, place: "on this machine (MemAvailable)".to_owned(), advice: "" };
        assert_eq!(shortage(&tree.0, 50 * MIB), None);
        assert_eq!(shortage(&tree.0, 60 * MIB), Some(machine.clone()));
        assert_eq!(shortage(&tree.0, 200 * MIB), Some(machine));
        std::fs::write(tree.0.join("sys/fs/cgroup/memory.current"), "94371840").unwrap();
        assert_eq!(shortage(&tree.0, 60 * MIB).unwrap().left, 6 * MIB);
        assert_eq!(left(&tree.0), Some(6 * MIB));
    }
}
